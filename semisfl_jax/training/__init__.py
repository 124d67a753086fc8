"""Building blocks of the training loop (`semisfl_jax.train`): an experiment, the inputs of its rounds, its outputs."""
