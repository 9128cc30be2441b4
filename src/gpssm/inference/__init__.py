"""Samplers, and the loop that runs them."""
