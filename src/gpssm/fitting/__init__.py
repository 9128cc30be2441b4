"""Fits: the comparison of starts and models, and the fit of one or many series."""
