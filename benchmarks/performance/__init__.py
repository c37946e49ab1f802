"""Cost of training and search: plain and fast code paths, bf16 and float32, time to accuracy."""
