"""A short round of a configuration in one form after another, on synthetic images."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from semisfl_jax import data, rng
from semisfl_jax.config import chosen
from semisfl_jax.errors import UserError
from semisfl_jax.forms import KEYS, Form
from semisfl_jax.models import SplitModel
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training import footprint, inputs, memory, simulation

_SECONDS = 0.5  # that a short round should take
_MOST_ITERATIONS = 10


class Shared(NamedTuple):
    """What the rounds of all forms have in common."""

    config: ConfigDict  # of the short round, in no form yet
    whole: tuple[int, int]  # K_s and K_u of a whole round
    dataset: data.Dataset  # without images
    partition: data.Partition


def prepare(config: ConfigDict) -> Shared:
    """The part of a configuration (resolved) that one device computes, with one iteration of each phase.

    Everything else is as configured. No data are needed for the sets that come with a configuration.

    Raises:
      UserError: as `experiment.build`, or the configuration names a partition file.
    """
    if config.data.partition_file:
        raise UserError(
            f"config.data.partition_file='{config.data.partition_file}' cannot be used without the data; leave it "
            'empty, since the split does not decide how fast a form is'
        )
    short = config.copy_and_resolve_references().unlock()
    tasks = max(1, len(config.data.tasks))
    if config.seeds:
        short.update(seed=config.seeds[0], seeds=())
    else:
        devices = max(1, config.parallel.devices)
        short.federation.num_active = tasks * -(-config.federation.num_active // (devices * tasks))
    short.parallel.update(devices=1, coordinator='', num_processes=1, process_id=0)
    short.data.residency = 'host'  # the images that a round reads are all that is held in memory
    short.pre_rounds = 0
    short.local.epochs = 0
    dataset = data.hollow(config.data)
    data.check_tasks(dataset, config.data.tasks)
    whole = config.k_s, config.k_u
    return Shared(_with_iterations(short, whole, 1), whole, dataset, experiment_lib.split(dataset, short))


def lengthen(shared: Shared, seconds_per_image: float) -> Shared:
    """The same with more iterations, so that a round takes about half a second if all its images take this long."""
    config = shared.config
    clients = config.federation.num_active * config.batch_size
    images = clients + config.server_batch_size * config.k_s  # with one iteration of each client
    iterations = int(_SECONDS / max(1e-9, seconds_per_image * images))
    count = max(1, min(iterations, _MOST_ITERATIONS))
    return shared._replace(config=_with_iterations(config, shared.whole, count))


def _with_iterations(config: ConfigDict, whole: tuple[int, int], count: int) -> ConfigDict:
    """With K_u `count`, or as in a whole round if that is less, and K_s in the proportion of `whole`, rounded up."""
    k_s, k_u = whole
    short = config.copy_and_resolve_references().unlock()
    short.k_u = min(count, k_u)
    short.k_s = -(-k_s * short.k_u // k_u)
    return short.lock()


def model_of(shared: Shared, form: Form) -> SplitModel:
    """The model in a form; of dense tasks that of the first one."""
    model = experiment_lib.build_parts(_in_form(shared.config, form), shared.dataset, None).model
    return model if isinstance(model, SplitModel) else model[0].model


def compile_round(shared: Shared, form: Form) -> Callable[[], float]:
    """Compiles the round in a form, as a run would.

    Returns:
      A function that computes it, always from the same state, and returns the seconds that it took.

    Raises:
      UserError: it does not fit into memory.
    """
    config = _in_form(shared.config, form)
    parts = experiment_lib.build_parts(config, shared.dataset, None)
    (federation,) = experiment_lib.build_federations(config, shared.dataset, [shared.partition])
    key = rng.root(config.seed)
    experiment = experiment_lib.assemble(config, shared.dataset, shared.partition, parts, key, federation)
    arguments = key, simulation.init_state(experiment)(key), *next(inputs.inputs(experiment, 0)), np.int32(config.k_s)
    compiled = simulation.compile_with(config)(experiment.algorithm.round).lower(*arguments).compile()
    memory.check_program('round', compiled, config, footprint.of_run)

    def seconds() -> float:
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        return time.perf_counter() - start

    return seconds


def _in_form(config: ConfigDict, form: Form) -> ConfigDict:
    values: dict[str, Any] = dict(zip(KEYS, form, strict=True))
    return chosen.fill(config, chosen.Taken({key: values[key] for key in chosen.used(config)}, (), ''))
