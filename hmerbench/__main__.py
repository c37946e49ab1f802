"""`hmerbench` and `python -m hmerbench`: the command line."""

import sys

from hmerbench.benchmarks.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
