"""What the training loop (`semisfl_jax.train`) is made of: an experiment, the inputs of its rounds, its outputs."""
