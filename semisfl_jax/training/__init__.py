"""Building blocks of the training loop (`semisfl_jax.loop`): an experiment, the inputs of its rounds, its outputs."""
