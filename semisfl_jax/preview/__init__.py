"""The programs of a run, compiled for a device that is not there: python -m semisfl_jax.preview."""
