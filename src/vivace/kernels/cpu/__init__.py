"""Native CPU kernels in C++: one template per kernel, compiled per instruction set, chosen at run time."""
