"""The regression gate: a short, fixed job and the baseline it is compared with."""
