"""What a method needs beside `config.algorithm`, in every configuration: pairs of keys and values, by method.

A method that is not named needs nothing.
"""

NEEDS: dict[str, tuple] = {'splitfed': (('data.client_labels', -1), ('k_s', 0), ('pre_rounds', 0))}


def changes(algorithm):
    """The keys of a configuration that runs a method, for `update_from_flattened_dict`."""
    return {'algorithm': algorithm, **dict(NEEDS.get(algorithm, ()))}
