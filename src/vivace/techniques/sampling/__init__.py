"""From the scores of the next token to one id: filters, one a file, and the draw."""
