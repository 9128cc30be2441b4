"""Judging fits: rolling forecasts, comparisons, selection, a summary, and checks."""
