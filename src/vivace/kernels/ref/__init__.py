"""The reference of every operation in plain torch, one family a file: the oracle that native kernels must match."""
