"""Runs of one process that have a program in common trace and lower it once: each part of it is built once.

What the package builds from equal arguments computes the same, but consists of new functions, and JAX traces those
anew. Only tests make so many runs in a process.
"""

import functools

from semisfl_jax import algorithms, core, models, tasks
from semisfl_jax.base import machine
from semisfl_jax.training import experiment


def all_of_them(*arguments, **named):
    return arguments, tuple(sorted(named.items()))


def once(function, key=all_of_them):
    """`function`, its results kept by the key of its arguments; not where they cannot be one."""
    kept = {}

    @functools.wraps(function)
    def kept_or_new(*arguments, **named):
        try:
            place = key(*arguments, **named)
            hash(place)
        except TypeError:
            return function(*arguments, **named)
        if place not in kept:
            kept[place] = function(*arguments, **named)
        return kept[place]

    kept_or_new.forget = kept.clear
    return kept_or_new


class Itself:
    """A record as part of a key, equal to itself alone; it stays, so that no other one gets its number."""

    def __init__(self, record):
        self.record = record

    def __eq__(self, other):
        return self.record is other.record

    def __hash__(self):
        return id(self.record)


def of_name(records):
    """A key of arguments of which the first is a name in `records`: a test may put another record there."""

    def key(name, *arguments, **named):
        return Itself(records.get(name)), name, all_of_them(*arguments, **named)

    return key


def of_views(options, dataset):
    return options.to_json(), tuple(dataset.mean), tuple(dataset.std)


shared = []


def share(patch):
    """Shares the parts from here on."""
    for module, name, key in (
        (models, 'build', of_name(models.ARCHITECTURES)),
        (models, 'build_dense', of_name(models.DENSE_ARCHITECTURES)),
        (tasks, 'make', all_of_them),
        (experiment, 'views', of_views),
        (algorithms, 'build', of_name(algorithms.METHODS)),
        (core.clients, 'client_axis', all_of_them),
        (core.clients, 'shard_round', all_of_them),
        (machine, 'jit', all_of_them),
    ):
        shared.append(once(getattr(module, name), key))
        patch.setattr(module, name, shared[-1])


def forget():
    """Lets go of all parts."""
    for part in shared:
        part.forget()
