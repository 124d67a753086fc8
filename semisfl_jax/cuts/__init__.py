"""Every cut of a model, priced before any training: python -m semisfl_jax.cuts."""
