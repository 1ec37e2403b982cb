"""Vivace: one inference engine for every kind of open model, on a plain CPU first."""

__version__ = "0.1.0"
