"""What training and search cost: plain against fast, bf16 against float32, time to accuracy."""
