"""Export of models to ONNX and torch.export, and example inputs for it."""
