"""Updates of a vector or a path that leave a density invariant, or climb it. They know nothing of models."""
