"""How good is it: metrics, rolling forecasts, comparisons, selection, a summary, and the one list
of checks.
"""
