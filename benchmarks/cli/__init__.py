"""The command line: options, and one file per group of verbs. No logic."""
