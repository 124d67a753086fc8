"""The measurements at a point of growth, in their own process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks import arithmetic, programs
from benchmarks.growth_points import Point
from benchmarks.processes import Side
from semisfl_jax import config as config_lib
from semisfl_jax import core, data
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training.driver import Driver
from semisfl_jax.training.experiment import Experiment

LABELED = 100  # images at the server
SHARE_OF_MEMORY = 0.9  # share of the available memory that a program may need


class Rounds(NamedTuple):
    """Rounds of one trial or of several in one program."""

    run: Callable[[], float]  # runs the next round; returns the sum of the trials' losses
    program: Any
    compile_s: float


def configuration(point: Point) -> ConfigDict:
    """The package's configuration of a point, on synthetic images."""
    config = programs.CONFIGURATIONS[point.model].get_config()
    config.data.update(fake=True, fake_size=LABELED + point.unlabeled, num_labeled=LABELED)
    config.federation.update(num_clients=point.clients, num_active=point.active, partition='uniform')
    config.federation.client_chunk = point.client_chunk
    config.precision = point.precision
    config.update(k_s=point.k_s, k_u=point.k_u, batch_size=point.batch_size, server_batch_size=point.batch_size)
    if point.study == 'devices':
        config.parallel.devices = point.devices
    if point.study == 'seeds':
        config.seeds = tuple(range(point.seeds))
        config.parallel.trials = point.trials
    config_lib.check(config)
    return config_lib.resolve(config)


def measure(point: Point) -> Side:
    """Builds and compiles the round of a point.

    Tasks: 'round', a complete one as in a run; in the study of seeds also 'alone', a round of each of as many single
    runs, one after another. Facts: seconds of start-up and compilation, and bytes, as reported by XLA. 'too_large' is
    empty or says why the program should not be run.
    """
    if point.devices > 1:  # a CPU can emulate several devices; other devices must exist
        flag = f'--xla_force_host_platform_device_count={point.devices}'
        os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {flag}'
    programs.first_start()
    config = configuration(point)
    start = time.perf_counter()
    experiments = experiment_lib.build_trials(config_lib.trials(config))
    facts = {**programs.facts(), 'start_s': {'all': time.perf_counter() - start}}
    if point.study == 'total':
        facts['start_s'] |= _start_seconds(config, experiments[0].dataset)

    rounds = prepare(config, experiments)
    tasks, facts['compile_s'] = {'round': rounds.run}, {'round': rounds.compile_s}
    if point.study == 'seeds':
        single_rounds = [prepare(config, experiments[:1])]  # one program serves all seeds
        single_rounds += [prepare(config, [experiment], single_rounds[0]) for experiment in experiments[1:]]
        tasks['alone'] = lambda: sum(rounds_of_one.run() for rounds_of_one in single_rounds)
        facts['compile_s']['alone'] = single_rounds[0].compile_s

    memory = rounds.program.memory_analysis()
    facts['temporary_bytes'] = memory.temp_size_in_bytes
    facts['per_client_bytes'] = _held_per_client(experiments[0], point.batch_size)
    needs = memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    limit = point.memory_limit or SHARE_OF_MEMORY * _memory_left()
    facts['too_large'] = (
        f'not run: by the account of XLA it needs {needs / 2**30:.1f} GiB more, and {limit / 2**30:.1f} may be used '
        '(--memory_limit)'
        if needs > limit
        else ''
    )
    return Side(tasks, facts, programs.device_memory)


def prepare(config: ConfigDict, experiments: list[Experiment], same: Rounds | None = None) -> Rounds:
    """Compiles the round of these trials, or reuses the program of others with the same shapes."""
    driver = Driver(experiments, config.parallel.trials)
    stream = driver.inputs(0)
    upcoming = next(stream)
    init = jax.jit(experiments[0].algorithm.init, out_shardings=core.clients.replicated(experiments[0].mesh))
    state = driver.stack([init(experiment.key) for experiment in experiments])
    k_s = driver.stack([np.int32(config.k_s)] * len(experiments))
    if same:
        program, seconds = same.program, same.compile_s
    else:
        program, seconds = programs.compiled(driver.round(), config, driver.key, state, *upcoming[:2], k_s)

    def run() -> float:
        nonlocal state, upcoming
        state, metrics = program(driver.key, state, *upcoming[:2], k_s)
        upcoming = next(stream)  # as in a run: gathered while the device computes
        jax.block_until_ready(state)
        return float(np.sum(metrics['loss_unlabeled']))

    return Rounds(run, program, seconds)


def _held_per_client(experiment: Experiment, batch_size: int) -> dict[str, int]:
    bottom = jax.eval_shape(experiment.model.init, experiment.key).bottom['params']
    parameters = sum(leaf.size for leaf in jax.tree.leaves(bottom))
    numbers = int(np.prod(experiment.dataset.train_images.shape[1:]))
    return arithmetic.held_per_client(parameters, numbers, experiment.model.feature_size, batch_size)


def _start_seconds(config: ConfigDict, dataset: data.Dataset) -> dict[str, float]:
    """Seconds of the two start-up steps that process every client."""
    start = time.perf_counter()
    partition = data.make_partition(dataset, config)
    split = time.perf_counter()
    jax.block_until_ready(data.build_federations(dataset, [partition], config.data.residency)[0])
    return {'partition': split - start, 'federation': time.perf_counter() - split}


def _memory_left() -> float:
    """Available bytes of the device, or of the machine if the device is a CPU; infinity if unknown."""
    if stats := jax.devices()[0].memory_stats():
        return stats['bytes_limit'] - stats['bytes_in_use']
    if (table := Path('/proc/meminfo')).exists():
        entries = dict(line.split(':') for line in table.read_text().splitlines())
        return 1024 * int(entries['MemAvailable'].split()[0])
    return float('inf')
