"""`python -m hmerbench.benchmarks` has another name now."""

import sys

from hmerbench.renamed import moved

sys.exit(moved("hmerbench.benchmarks"))
