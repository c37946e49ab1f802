"""LgEval's comparison of label graphs, the files it writes, and its command-line scripts."""
