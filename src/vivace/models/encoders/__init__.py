"""Encoders: models that read a whole sequence at once and keep nothing."""
