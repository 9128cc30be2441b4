"""Sampling algorithms and the loop that runs them."""
