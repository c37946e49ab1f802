"""The drivers: data, training, prediction, tables. They read and write run folders."""
