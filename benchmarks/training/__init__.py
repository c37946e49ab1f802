"""Training: the loop, its loss and optimizer, the processes of a team, checkpoints, recorded steps."""
