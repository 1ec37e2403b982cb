"""What a step runs on: device, threads, memory, and named tensors to look at."""
