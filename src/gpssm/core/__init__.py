"""What knows nothing of models: linear algebra, runtime, places of tasks, files, text."""
