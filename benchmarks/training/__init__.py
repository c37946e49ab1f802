"""Training: the loop, loss and optimizer, distributed processes, checkpoints, CUDA graphs."""
