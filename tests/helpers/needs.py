"""What a method needs beside `config.algorithm`, in every configuration: that is in its record."""

from semisfl_jax import algorithms
from tests.helpers import toy_scenes


def changes(algorithm):
    """The keys of a configuration that runs a method, for `update_from_flattened_dict`; dense tasks are the toy's."""
    method = algorithms.get(algorithm)
    return {'algorithm': algorithm, **(toy_scenes.NEEDS if method.dense else {}), **method.needs}
