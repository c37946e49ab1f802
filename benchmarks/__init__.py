"""The drivers: data, training, prediction, tables. They read and write run folders."""

import sys

if __name__ != "hmerbench.benchmarks":  # one module, one name
    if sys.argv[0] == "-m":
        from hmerbench.renamed import moved

        sys.exit(moved(__name__))
    raise ImportError("benchmarks/ is imported as hmerbench.benchmarks", name=__name__)
