"""The results of a fit: draws, and their forecasts, filters, diagnostics and files."""
