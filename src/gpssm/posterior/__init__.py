"""What a fit gives back: draws, and forecasts, filters, diagnostics and files made of them."""
