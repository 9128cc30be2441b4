"""From data to draws: chains, checkpoints, progress, the loop, `fit` and `update`."""
