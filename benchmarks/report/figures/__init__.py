"""`make figures`: the figures in results/figures/, drawn from run folders; Fig. 4 from a committed network."""
