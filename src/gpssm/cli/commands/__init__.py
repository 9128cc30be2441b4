"""The commands, with one file per group."""
