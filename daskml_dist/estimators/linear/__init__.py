"""Base classes of the linear models: coefficients, predictions, parameters of SGD."""
