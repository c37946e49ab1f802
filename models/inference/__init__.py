"""Reading with a trained network: joint search, plain and fast, and the rating of whole sequences."""
