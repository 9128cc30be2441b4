"""Data: files, series, their conversion to the model's units, and benchmark and simulated
series.
"""
