"""Recognition with a trained network: the joint search, plain and fast."""
