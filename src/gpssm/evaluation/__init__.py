"""Evaluate fits: backtests, comparisons, selection, summaries, and checks."""
