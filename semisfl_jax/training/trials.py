"""Several trials of one experiment, which differ in their seeds, in one compiled round.

A trial is equivalent to a run of its seed alone: its own data split, weights, cohorts, batches and K_s. Trials share
the program and one copy of the images; everything else gains a leading axis [R], which lower-level modules never see.
Several devices divide the trials, which are independent, and each hold a copy of the images.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from semisfl_jax import core, data
from semisfl_jax.core.types import Array, Cohort, Federation, Metrics
from semisfl_jax.training import inputs as inputs_lib
from semisfl_jax.training.experiment import Experiment


class Batch(NamedTuple):
    """Trials that are computed together. A single trial is left unchanged, without a trial axis."""

    map: str  # 'vmap' | 'loop', '' for one trial
    key: Array  # [R] root keys
    round: Callable[..., tuple[Any, Metrics]]  # as Algorithm.round, arguments and results of R trials
    inputs: Callable[[int], Iterator[tuple[Federation, Cohort]]]  # as inputs.inputs
    stack: Callable[[Sequence[Any]], Any]  # R pytrees -> one, leaves [R, ...]
    part: Callable[[Any, int], Any]  # the inverse: pytree, r -> pytree of trial r


def batch(trials: Sequence[Experiment], trial_map: str, devices: int = 1) -> Batch:
    """Combines trials into one batch.

    Args:
      trials: R trials, from `experiment.build_trials`.
      trial_map: 'auto', 'vmap' or 'loop', see `parallel.trial_map`; for the trials of one device.
      devices: number of devices that divide the trials, a divisor of R.

    Raises:
      UserError: there are fewer devices.
    """
    first = trials[0]
    if len(trials) == 1:
        inputs = partial(inputs_lib.inputs, first)
        return Batch('', first.key, first.algorithm.round, inputs, lambda trees: trees[0], lambda tree, r: tree)
    name, mapped = core.trial_map(trial_map)
    mesh = core.make_mesh(devices)
    divided = partial(_place, mesh, divided=True)
    return Batch(
        map=name,
        key=divided(stack([trial.key for trial in trials])),
        round=build_round(first.algorithm.round, mapped, mesh),
        inputs=partial(_inputs, trials, mesh),
        stack=lambda trees: divided(stack(trees)),
        part=partial(_part, mesh),
    )


def _place(mesh: Mesh | None, tree: Any, divided: bool) -> Any:
    """Divides leaves [R, ...] over the devices, or copies each leaf to every device."""
    return jax.device_put(tree, NamedSharding(mesh, P(core.AXIS) if divided else P())) if mesh else tree


def _part(mesh: Mesh | None, tree: Any, r: int) -> Any:
    """Trial r of leaves [R, ...], which are on the host, traced, or on devices; then on the first of these."""
    first = jax.tree.leaves(tree)[0]
    if not isinstance(first, jax.Array):
        return jax.tree.map(lambda x: x[r], tree)
    if mesh is None or isinstance(first, jax.core.Tracer):
        return _take(tree, np.int32(r))
    device, place = divmod(r, first.shape[0] // mesh.size)
    here = mesh.devices[device]
    own = jax.tree.map(lambda x: next(shard.data for shard in x.addressable_shards if shard.device == here), tree)
    return jax.device_put(_take(own, np.int32(place)), jax.devices()[0])


@jax.jit
def _take(tree: Any, r: Array) -> Any:
    """Trial r of leaves [R, ...] in one program: evaluation needs it after every round, and leaves are many."""
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, r, keepdims=False), tree)


def stack(trees: Sequence[Any]) -> Any:
    """R pytrees of equal structure -> one whose leaves have a leading axis [R]."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def build_round(round_: Callable, trial_map: Callable, mesh: Mesh | None = None) -> Callable[..., tuple[Any, Metrics]]:
    """The round of R trials.

    Args:
      round_: of one trial, as `Algorithm.round`.
      trial_map: a function with the meaning of `jax.vmap`.
      mesh: the devices that divide the trials, None for one device.

    Returns:
      A function (keys [R], states, federation, cohorts, k_s [R]) -> states, metrics. Every leaf has a leading [R],
      except the shared images and labels of a federation from `stack_federations`.
    """

    def one(
        shared: dict[str, Any],
        number: Array,
        key: Array,
        state: Any,
        tables: Federation,
        cohort: Cohort,
        k_s: Array,
    ) -> tuple[Any, Metrics]:
        return round_(key, state.replace(round=number), tables.replace(**shared), cohort, k_s)

    mapped = trial_map(one, in_axes=(None, None, 0, 0, 0, 0, 0))

    def rounds(keys: Array, states: Any, federation: Federation, cohorts: Cohort, k_s: Array) -> tuple[Any, Metrics]:
        names = _shared(federation)
        shared = {name: getattr(federation, name) for name in names}
        tables = federation.replace(**dict.fromkeys(names))
        # All trials are in the same round; passed without a trial axis, conditions on it stay scalar under vmap.
        return mapped(shared, states.round[0], keys, states, tables, cohorts, k_s)

    def spread(keys: Array, states: Any, federation: Federation, cohorts: Cohort, k_s: Array) -> tuple[Any, Metrics]:
        per_trial = P(core.AXIS)
        tables = jax.tree.map(lambda _: per_trial, federation).replace(**dict.fromkeys(_shared(federation), P()))
        specs = per_trial, per_trial, tables, per_trial, per_trial
        function = jax.shard_map(rounds, mesh=mesh, in_specs=specs, out_specs=per_trial, check_vma=False)
        return function(keys, states, federation, cohorts, k_s)

    return spread if mesh else rounds


def stack_federations(federations: Sequence[Federation]) -> Federation:
    """The tables of R trials stacked [R, ...], with one copy of the images and labels that the trials share."""
    names = _shared(federations[0])
    tables = stack([federation.replace(**dict.fromkeys(names)) for federation in federations])
    return tables.replace(**{name: getattr(federations[0], name) for name in names})


def _shared(federation: Federation) -> tuple[str, ...]:
    """Fields without a trial axis. Streamed images have one: they are those that each trial's own clients will read."""
    at_server = ('server_images', 'server_labels')
    return at_server if federation.streamed else (*at_server, 'client_images', 'client_labels', 'client_targets')


def _inputs(trials: Sequence[Experiment], mesh: Mesh | None, first: int) -> Iterator[tuple[Federation, Cohort]]:
    """The inputs of the round of R trials besides its state, for round `first` (0-based) and all later ones."""
    federation = trials[0].federation
    stacked = stack_federations([data.tables(trial.federation) for trial in trials])
    shared = {name: _place(mesh, getattr(stacked, name), divided=False) for name in _shared(stacked)}
    stacked = _place(mesh, stacked.replace(**dict.fromkeys(shared)), divided=True).replace(**shared)
    host = None
    if isinstance(federation, data.HostFederation):
        host = dataclasses.replace(federation, tables=stacked)
    for cohorts in zip(*(inputs_lib.cohorts(trial, first) for trial in trials), strict=True):
        federation = stacked
        if host and trials[0].method.clients:
            rows = np.stack([inputs_lib.rows(t, cohort) for t, cohort in zip(trials, cohorts, strict=True)])
            place = partial(core.shard, mesh)
            federation = host.streamed(rows, trials[0].method.reads, trials=True, place=place)
        cohort = jax.tree.map(lambda *leaves: np.stack(leaves), *cohorts)
        yield federation, _place(mesh, cohort, divided=True)
