"""Decoders: models that predict the next token from a paged store of the past."""
