"""From a file to a `Series`, scaled; benchmark and simulated series."""
