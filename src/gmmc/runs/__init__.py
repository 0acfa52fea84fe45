"""Run folders and model files: configuration, metrics, weights, resume states, results."""
