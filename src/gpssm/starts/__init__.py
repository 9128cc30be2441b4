"""Where a sampler begins: a model and the states it starts from."""
