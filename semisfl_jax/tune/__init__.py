"""Which form of the programs is fastest on the machine at hand: python -m semisfl_jax.tune."""
