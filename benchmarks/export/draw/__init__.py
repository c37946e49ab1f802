"""A page to draw on: one HTML file with a network in it, which reads in the browser (make.py)."""
