"""Language models: corpora, settings and recipes, the training loop, perplexities."""
