"""Semi-supervised split federated learning in JAX."""

from pathlib import Path

__version__ = '0.1.0'

# `semisfl_jax.configs` is the folder configs/: in a wheel it lies inside of the package, in a checkout beside it.
if not Path(__file__).with_name('configs').is_dir():
    __path__.append(str(Path(__file__).parents[1]))
