"""From a trained run to files that others can use: ONNX with a reader of its own, a page to draw on, a model card."""
