"""A reproducibility benchmark suite for handwritten mathematical expression recognition."""
