"""Training: the loop, the optimizer, distributed processes, checkpoints, CUDA graphs."""
