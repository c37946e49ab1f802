"""`python -m hmerbench.evaluation.scoreboard` has another name now."""

import sys

from hmerbench.renamed import moved

sys.exit(moved("hmerbench.evaluation.scoreboard"))
