"""The drivers: data, training, prediction, tables. They read and write run folders."""

if __name__ != "hmerbench.benchmarks":  # one module, one name
    raise ImportError("benchmarks/ is imported as hmerbench.benchmarks", name=__name__)
