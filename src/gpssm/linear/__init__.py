"""Linear-Gaussian state-space models from data."""
