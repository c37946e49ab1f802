"""The gate on metrics: a fixed, quick job and the baseline it is held to."""
