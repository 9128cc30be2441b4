"""What knows nothing of models: linear algebra, the set-up of the machine, files, words."""
