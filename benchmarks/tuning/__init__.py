"""Hyper-parameter search with Optuna: spaces, trials, studies and what they found."""
