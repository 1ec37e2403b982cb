"""Native CPU kernels in C++: one template per kernel, compiled per instruction set, chosen at run time.

How a call travels, and so where a new kernel goes, `linear` being the pattern:

    kernels/ops.py          the signature, the equation, the shapes
    kernels/ref/linear.py   the reference
    select.py               the name in the table of native operations
    cpu/bind.py             allocates the output, hands tensors over
    cpu/module.cpp          checks every tensor, releases the interpreter lock
    cpu/kernels.cpp         cuts the work into items for the pool
    cpu/table.h             one function pointer per kernel and instruction set
    cpu/linear_kernel.h     the kernel, a template over Vec16
    cpu/isa/*.h             Vec16, sixteen floats: all that is specific to an instruction set
    tests/kernels/          against the reference, and bit for bit across sets, threads, batches
    benchmarks/cases.py     its work, timed beside the machine's ceilings

A kernel fixes the order in which each output element is summed, and rounds in the same steps on every instruction set:
then its result cannot depend on batch, tiling or threads.
"""
