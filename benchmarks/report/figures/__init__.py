"""`make figures`: the figures of results/figures/, drawn from files alone."""
