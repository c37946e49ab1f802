"""Reading with a trained network: joint search, plain and fast."""
