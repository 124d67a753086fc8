"""What a method needs beside `config.algorithm`, in every configuration: that is in its record."""

from semisfl_jax import algorithms


def changes(algorithm):
    """The keys of a configuration that runs a method, for `update_from_flattened_dict`."""
    return {'algorithm': algorithm, **algorithms.get(algorithm).needs}
