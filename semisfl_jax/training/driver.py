"""Computes the rounds of a run: of one trial, or of several that differ in their seeds, in one compiled round.

A trial is equivalent to a run of its seed alone: its own data split, weights, cohorts, batches and K_s. Trials share
the program and one copy of the images; everything else gains a leading axis [R], which lower-level modules never see.
Trials are independent, so several devices divide them; each device holds a copy of the images. The program of a single
trial has no axis [R]: there, `stack` and `split` change nothing. On the host, values per trial are lists [R].
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from semisfl_jax import core, costs, data
from semisfl_jax.base import machine
from semisfl_jax.config import failures, keys
from semisfl_jax.core import frequency, hparams
from semisfl_jax.core.types import Array, Cohort, Federation, Metrics
from semisfl_jax.training import checks
from semisfl_jax.training import inputs as inputs_lib
from semisfl_jax.training.experiment import Experiment

_ADAPTS_TO = ('loss_supervised', 'loss_unlabeled', 'lr', 'mask_rate')  # metrics that the controller of K_s reads


class RoundInputs(NamedTuple):
    """The inputs of a round besides its state; arrays of several trials have leading axes [R]."""

    federation: Federation  # if the client images are on the host, with the images that the round will draw
    cohort: Cohort
    clients: list[costs.Clients | None]  # [R], participation of the active clients, None in a round without clients


class Driver:
    """Computes the rounds of R trials.

    Attributes:
      trials: [R].
      map: how the trials of one device are computed: 'vmap' | 'loop', '' for one trial.
      key: root keys of all trials.
      varied: keys of `HParams` whose values differ between the trials.
    """

    def __init__(
        self, trials: Sequence[Experiment], trial_map: str = 'auto', devices: int = 1, varied: Sequence[str] = ()
    ):
        """Combines R trials into one program.

        Args:
          trials: [R] from `experiment.build_trials`.
          trial_map: 'auto', 'vmap' or 'loop'.
          devices: number of devices that divide the trials, a divisor of R.
          varied: keys of `HParams` whose values differ between the trials. These are arguments of the program.

        Raises:
          UserError: there are fewer devices.
        """
        first = trials[0]
        self.trials, self.map, self._mesh, self.varied = trials, '', first.mesh, tuple(varied)
        if len(trials) > 1:
            self.map, self._mesh = core.clients.trial_map(trial_map)[0], core.clients.make_mesh(devices)
        self.key = self.stack([trial.key for trial in trials])
        self._values = [self.stack([np.float32(keys.flat(trial.config)[key]) for trial in trials]) for key in varied]

    def round(self, at_once: int = 0) -> Callable[..., tuple[Any, Metrics]]:
        """Returns the round: as `Algorithm.round`, with arguments and results of all trials.

        Args:
          at_once: number of trials that are computed at once on a device, where map is 'vmap'; 0: all.
        """
        if len(self.trials) == 1:
            return self.trials[0].algorithm.round
        mapped = core.clients.trial_map(self.map, at_once)[1]
        return build_round(partial(compute_round, self.trials[0], self.varied), mapped, self._mesh)

    def stack(self, trees: Sequence[Any]) -> Any:
        """Stacks R pytrees into one with leaves [R, ...], divided over the devices; returns a single one as it is."""
        if len(trees) == 1 or not self._mesh:
            return _stack(trees)
        return jax.device_put(_stack(trees), NamedSharding(self._mesh, P(core.clients.AXIS)))

    @property
    def state_shapes(self) -> Any:
        """Shapes of the state of all trials, with the places of its arrays."""
        shapes = self.trials[0].state_shapes
        if len(self.trials) == 1:
            return core.clients.like(self._mesh, shapes)
        place = self._mesh and NamedSharding(self._mesh, P(core.clients.AXIS))
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((len(self.trials), *x.shape), x.dtype, sharding=place), shapes
        )

    def split(self, tree: Any) -> list[Any]:
        """Splits leaves [R, ...] into R pytrees, the inverse of `stack`; leaves on several devices move to the host."""
        if len(self.trials) == 1:
            return [tree]
        tree = jax.device_get(tree) if self._mesh else tree
        on_device = any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(tree))
        take = _take if on_device else lambda tree, r: jax.tree.map(lambda x: x[r], tree)
        return [take(tree, np.int32(r)) for r in range(len(self.trials))]

    def inputs(self, first: int) -> Iterator[RoundInputs]:
        """Yields the inputs of round `first` (0-based) and of all later ones."""
        trials, place = self.trials, partial(core.clients.shard, self._mesh)
        federation, method = trials[0].federation, trials[0].method
        tables, host = self._tables(), None
        if isinstance(federation, data.HostFederation) and method.clients:
            host = dataclasses.replace(federation, tables=tables)

        def drawn() -> Iterator[tuple[Cohort, Sequence[costs.Clients | None], Any]]:
            for per_trial in zip(*(inputs_lib.cohorts(trial, first) for trial in trials), strict=True):
                cohorts, clients = zip(*per_trial, strict=True)
                yield _stack(cohorts), clients, _stack(list(map(inputs_lib.rows, trials, cohorts))) if host else None

        # Draws a round's rows before the previous round starts: a device would only begin with them after that round
        for (cohort, clients, rows), _ in itertools.pairwise(drawn()):
            if host:
                tables = host.streamed(rows, method.reads, place)
            yield RoundInputs(tables, jax.tree.map(lambda x: place(x.shape, x.__getitem__), cohort), list(clients))

    def _tables(self) -> Federation:
        """Returns the data of all trials on every device, without the clients' images if these are on the host."""
        first, *others = (data.tables(trial.federation) for trial in self.trials)
        if not others:
            return core.clients.replicate(self._mesh, first)
        names = _shared(first)
        stacked = self.stack([tables.replace(**dict.fromkeys(names)) for tables in (first, *others)])
        return stacked.replace(**core.clients.replicate(self._mesh, {name: getattr(first, name) for name in names}))

    def arguments(self, state: Any, controllers: Sequence[frequency.FrequencyState], inputs: RoundInputs) -> tuple:
        """Assembles the arguments of the `round` from the state of all trials and the controllers [R]."""
        k_s = self.stack([np.int32(controller.k_s) for controller in controllers])
        return self.key, state, inputs.federation, inputs.cohort, k_s, *self._values

    def finish(
        self,
        index: int,
        controllers: Sequence[frequency.FrequencyState],
        state: Any,
        measured: Metrics,
        clients: Sequence[costs.Clients | None],
    ) -> tuple[list[frequency.FrequencyState], list[dict[str, np.ndarray]]]:
        """Fetches the metrics of a round and updates the controllers of K_s.

        Args:
          index: round, 0-based.
          controllers: [R] before the round.
          state: state that the round returned, of all trials.
          measured: metrics that it returned, of all trials.
          clients: [R], participation, None in a server-only round.

        Returns:
          The controllers [R] after the round, and the metrics [R] on the host. Those of clients are NaN
          if all were lost.

        Raises:
          UserError: the method does not count its rounds.
        """
        measured, counted = jax.device_get((measured, state.round))
        checks.check_counted(self.trials[0].method.name, counted, index + 1)
        metrics = list(map(failures.mask_lost_rounds, self.split(measured), clients))
        after = []
        for trial, controller, values in zip(self.trials, controllers, metrics, strict=True):
            losses = (float(values.get(name, math.nan)) for name in _ADAPTS_TO)
            after.append(frequency.update(controller, trial.frequency, *losses))
        return after, metrics


def compute_round(experiment: Experiment, varied: Sequence[str], *arguments: Any) -> tuple[Any, Metrics]:
    """Computes `Algorithm.round`, whose arguments the values of `varied` keys follow."""
    if not varied:
        return experiment.algorithm.round(*arguments)
    arguments, values = arguments[: -len(varied)], arguments[-len(varied) :]
    # As numbers of Python, they take the type of what they are combined with
    weak = {key: jax.lax.convert_element_type(value, float) for key, value in zip(varied, values, strict=True)}
    return experiment.build(hparams.with_values(experiment.hparams, weak)).round(*arguments)


def init_state(experiment: Experiment) -> jax.stages.Wrapped:
    """Jits the function from a root key to the state before the first round, on every device."""
    return machine.jit_once(experiment.algorithm.init, core.clients.replicated(experiment.mesh))


def _stack(trees: Sequence[Any]) -> Any:
    """Stacks R pytrees of equal structure into one with leaves [R, ...]; returns a single one as it is."""
    if len(trees) == 1:
        return trees[0]
    return jax.tree.map(lambda *leaves: (jnp if isinstance(leaves[0], jax.Array) else np).stack(leaves), *trees)


@jax.jit
def _take(tree: Any, r: Array) -> Any:
    """Takes trial r from leaves [R, ...] in one program, as there are many leaves."""
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, r, keepdims=False), tree)


def build_round(round_: Callable, trial_map: Callable, mesh: Mesh | None = None) -> Callable[..., tuple[Any, Metrics]]:
    """Builds the round of R trials from the round of one.

    Args:
      round_: round of one trial.
      trial_map: a function with the meaning of `jax.vmap`.
      mesh: devices that divide the trials, None for one.

    Returns:
      A function (keys [R], states, federation, cohorts, k_s [R], …) -> states, metrics. Every leaf has a leading [R],
      except the images and labels of a federation that trials share.
    """

    def rounds(keys: Array, states: Any, federation: Federation, *rest: Any) -> tuple[Any, Metrics]:
        shared = {name: getattr(federation, name) for name in _shared(federation)}
        # All trials are in the same round. Without a trial axis, conditions on it stay scalar under vmap.
        number = states.round[0]

        def one(key: Array, state: Any, tables: Federation, *rest: Any) -> Any:
            return round_(key, state.replace(round=number), tables.replace(**shared), *rest)

        return trial_map(one)(keys, states, federation.replace(**dict.fromkeys(shared)), *rest)

    def spread(keys: Array, states: Any, federation: Federation, *rest: Any) -> tuple[Any, Metrics]:
        per_trial = P(core.clients.AXIS)
        tables = jax.tree.map(lambda _: per_trial, federation).replace(**dict.fromkeys(_shared(federation), P()))
        specs = per_trial, per_trial, tables, *(per_trial for _ in rest)
        function = jax.shard_map(rounds, mesh=mesh, in_specs=specs, out_specs=per_trial, check_vma=False)
        return function(keys, states, federation, *rest)

    return spread if mesh else rounds


def _shared(federation: Federation) -> tuple[str, ...]:
    """Names the fields without a trial axis. Streamed images have one: each trial streams what its own clients read."""
    at_server = ('server_images', 'server_labels')
    return at_server if federation.streamed else (*at_server, 'client_images', 'client_labels', 'client_targets')
