"""Hyperparameter tuning with Optuna: search spaces, trials, studies and their results."""
