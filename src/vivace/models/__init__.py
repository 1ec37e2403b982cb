"""Models: one family a file, each with its configuration, its forward pass and its weight names."""
