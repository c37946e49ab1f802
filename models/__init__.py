"""Networks in plain torch, independent of data, training and all files but weights."""

if __name__ != "hmerbench.models":  # one module, one name
    raise ImportError("models/ is imported as hmerbench.models", name=__name__)
