"""Hyper-parameters tuned with Optuna: spaces, trials, studies and what they found."""
