"""From files of predictions and ground truth to a score, its interval, and tables of errors."""
