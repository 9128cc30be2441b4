"""Linear-Gaussian state-space models fitted to data."""
