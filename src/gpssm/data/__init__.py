"""From a file to a `Series`, scaled; later data aligned to the training columns; benchmark and simulated series."""
