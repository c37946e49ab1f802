"""Networks in plain torch, independent of data, training and all files but weights."""
