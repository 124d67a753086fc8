"""The driver of the rounds of a run: of one trial, or of several, which differ in their seeds, in one compiled round.

A trial is equivalent to a run of its seed alone: its own data split, weights, cohorts, batches and K_s. Trials share
the program and one copy of the images; everything else gains a leading axis [R], which lower-level modules never see.
Several devices divide the trials, which are independent, and each hold a copy of the images. A single trial has no
such axis on the device. On the host, what belongs to each trial is a list [R].
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from semisfl_jax import core, costs, data
from semisfl_jax.config import failures
from semisfl_jax.core import frequency
from semisfl_jax.core.frequency import FrequencyState
from semisfl_jax.core.types import Array, Cohort, Federation, Metrics
from semisfl_jax.training import checks
from semisfl_jax.training import inputs as inputs_lib
from semisfl_jax.training.experiment import Experiment
from semisfl_jax.training.inputs import RoundInputs

_ADAPTS_TO = ('loss_supervised', 'loss_unlabeled', 'lr', 'mask_rate')  # what the controller of K_s looks at


class Driver:
    """Computes the rounds of R trials.

    Attributes:
      trials: [R].
      map: how the trials of one device are computed: 'vmap' | 'loop', '' for one trial.
      key: [R] root keys.
      round: as `Algorithm.round`, arguments and results of R trials.
    """

    def __init__(self, trials: Sequence[Experiment], trial_map: str = 'auto', devices: int = 1):
        """Combines R trials from `experiment.build_trials`, divided over `devices`, a divisor of R; `trial_map` is
        'auto', 'vmap' or 'loop'.

        Raises:
          UserError: there are fewer devices.
        """
        self.trials, self._mesh, first = trials, None, trials[0]
        self.map, self.key, self.round = '', first.key, first.algorithm.round
        if len(trials) > 1:
            self.map, mapped = core.trial_map(trial_map)
            self._mesh = core.make_mesh(devices)
            self.key = self.stack([trial.key for trial in trials])
            self.round = build_round(first.algorithm.round, mapped, self._mesh)

    def stack(self, trees: Sequence[Any]) -> Any:
        """R pytrees -> one with leaves [R, ...], divided over the devices; of one trial, its own."""
        return trees[0] if len(self.trials) == 1 else _place(self._mesh, stack(trees), divided=True)

    def split(self, tree: Any) -> list[Any]:
        """The inverse of `stack`, of leaves on the host, or on devices: then to the first of these."""
        if len(self.trials) == 1:
            return [tree]
        return [_part(self._mesh, tree, r) for r in range(len(self.trials))]

    def inputs(self, first: int) -> Iterator[RoundInputs]:
        """The inputs of round `first` (0-based) and of all later ones; `clients` is a list [R]."""
        if len(self.trials) > 1:
            return _inputs(self.trials, self._mesh, first)
        return (inputs._replace(clients=[inputs.clients]) for inputs in inputs_lib.inputs(self.trials[0], first))

    def arguments(self, state: Any, controllers: Sequence[FrequencyState], inputs: RoundInputs) -> tuple:
        """The arguments of `round`."""
        k_s = self.stack([np.int32(controller.k_s) for controller in controllers])
        return self.key, state, inputs.federation, inputs.cohort, k_s

    def finish(
        self,
        index: int,
        controllers: Sequence[FrequencyState],
        state: Any,
        measured: Metrics,
        clients: Sequence[costs.Clients | None],
    ) -> tuple[list[FrequencyState], list[dict[str, np.ndarray]]]:
        """What follows from the state and the metrics that round `index` (0-based) returned for all trials.

        Returns:
          The controllers [R] after it, and the metrics [R] on the host; those of clients are NaN if all were lost.

        Raises:
          UserError: the method does not count its rounds.
        """
        measured, counted = jax.device_get((measured, state.round))
        checks.check_counted(self.trials[0].method.name, counted, index + 1)
        of_trials = list(map(failures.of_survivors, self.split(measured), clients))
        after = []
        for trial, controller, values in zip(self.trials, controllers, of_trials, strict=True):
            losses = (float(values.get(name, math.nan)) for name in _ADAPTS_TO)
            after.append(frequency.update(controller, trial.frequency, *losses))
        return after, of_trials


def init_state(experiment: Experiment) -> jax.stages.Wrapped:
    """The jitted function: root key -> state before the first round, on every device."""
    return jax.jit(experiment.algorithm.init, out_shardings=core.replicated(experiment.mesh))


def _place(mesh: Mesh | None, tree: Any, divided: bool) -> Any:
    """Divides leaves [R, ...] over the devices, or copies each leaf to every device."""
    return jax.device_put(tree, NamedSharding(mesh, P(core.AXIS) if divided else P())) if mesh else tree


def _part(mesh: Mesh | None, tree: Any, r: int) -> Any:
    """Trial r of leaves [R, ...], which are on the host, or on devices; then on the first of these."""
    leaves = jax.tree.leaves(tree)
    if not leaves or not isinstance(leaves[0], jax.Array):
        return jax.tree.map(lambda x: x[r], tree)
    if mesh is None:
        return _take(tree, np.int32(r))
    device, place = divmod(r, leaves[0].shape[0] // mesh.size)
    here = mesh.devices[device]
    own = jax.tree.map(lambda x: next(shard.data for shard in x.addressable_shards if shard.device == here), tree)
    return jax.device_put(_take(own, np.int32(place)), jax.devices()[0])


@jax.jit
def _take(tree: Any, r: Array) -> Any:
    """Trial r of leaves [R, ...] in one program: leaves are many."""
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, r, keepdims=False), tree)


def stack(trees: Sequence[Any]) -> Any:
    """R pytrees of equal structure -> one whose leaves have a leading axis [R]."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def build_round(round_: Callable, trial_map: Callable, mesh: Mesh | None = None) -> Callable[..., tuple[Any, Metrics]]:
    """The round of R trials from that of one, by `trial_map`, a function with the meaning of `jax.vmap`.

    Returns:
      A function (keys [R], states, federation, cohorts, k_s [R]) -> states, metrics. Every leaf has a leading [R],
      except the images and labels of a federation that trials share.
    """

    def one(shared: dict[str, Any], number: Array, key: Array, state: Any, tables: Federation, *rest: Any) -> Any:
        return round_(key, state.replace(round=number), tables.replace(**shared), *rest)

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


def _shared(federation: Federation) -> tuple[str, ...]:
    """Fields without a trial axis. Streamed images have one: they are those that each trial's own clients will read."""
    at_server = ('server_images', 'server_labels')
    return at_server if federation.streamed else (*at_server, 'client_images', 'client_labels', 'client_targets')


def _inputs(trials: Sequence[Experiment], mesh: Mesh | None, first: int) -> Iterator[RoundInputs]:
    """The inputs of R trials, for round `first` (0-based) and all later ones."""
    federation, of_trials = trials[0].federation, [data.tables(trial.federation) for trial in trials]
    shared = {name: getattr(of_trials[0], name) for name in _shared(of_trials[0])}
    stacked = stack([tables.replace(**dict.fromkeys(shared)) for tables in of_trials])
    stacked = _place(mesh, stacked, divided=True).replace(**_place(mesh, shared, divided=False))
    host = None
    if isinstance(federation, data.HostFederation) and trials[0].method.clients:
        host = dataclasses.replace(federation, tables=stacked)

    def drawn() -> Iterator[tuple[Any, Any, Any]]:
        for of_round in zip(*(inputs_lib.cohorts(trial, first) for trial in trials), strict=True):
            cohorts, clients = zip(*of_round, strict=True)
            yield cohorts, clients, list(map(inputs_lib.rows, trials, cohorts)) if host else None

    tables = stacked
    for (cohorts, clients, read), _ in itertools.pairwise(drawn()):  # rows a round ahead, as in `inputs`
        if host:
            place = partial(core.shard, mesh)
            tables = host.streamed(np.stack(read), trials[0].method.reads, trials=True, place=place)
        cohort = jax.tree.map(lambda *leaves: np.stack(leaves), *cohorts)
        yield RoundInputs(tables, _place(mesh, cohort, divided=True), list(clients))
