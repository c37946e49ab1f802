"""The drivers: data, training, prediction, tables. The only package with side effects."""
