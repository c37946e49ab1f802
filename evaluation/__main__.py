"""`python -m hmerbench.evaluation` has another name now."""

import sys

from hmerbench.renamed import moved

sys.exit(moved("hmerbench.evaluation"))
