"""Where a sampler begins: linear fits, and the model built from one."""
