"""The command line: shared options and one module per group of commands. No logic."""
