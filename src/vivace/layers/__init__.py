"""Blocks that models share. A layer holds weights and calls operations; it knows no model and no technique."""
