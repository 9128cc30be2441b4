"""What knows nothing of models: linear algebra, the set-up of the machine, places where tasks run, files, words."""
