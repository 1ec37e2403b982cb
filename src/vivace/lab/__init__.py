"""Measurements of the engine: what the machine can do at most, and how near to it each kind of work comes."""
