"""Recognition with a trained network: the searches of all networks."""
