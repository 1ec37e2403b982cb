"""Weights: files as named tensors, rename rules, strict loading; the catalog of short names and downloads."""
