"""`make figures`: the figures of results/figures/, drawn from run folders; Fig. 4 by a committed network."""
