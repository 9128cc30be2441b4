"""Parts that do not depend on models: linear algebra, runtime, parallel tasks, files, text."""
