"""Starts of samplers: a model and the states of each series."""
