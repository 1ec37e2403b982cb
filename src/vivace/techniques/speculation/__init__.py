"""From the text so far to guesses of the tokens that come next."""
