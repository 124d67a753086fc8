"""The compiled rounds of all methods in one process, of which only one runs at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks import programs
from benchmarks.method_cases import Case, Method
from benchmarks.processes import Side
from semisfl_jax import config as config_lib
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training import inputs
from semisfl_jax.training.driver import Driver

LOSSES = ('loss_unlabeled', 'loss_supervised', 'loss_local')  # a method has at least one of them


def configuration(case: Case, method: Method) -> ConfigDict:
    """The package's configuration of a method: the data set's own, on synthetic images, all clients active and equal.

    Raises:
      UserError: keys that are incompatible with the method.
    """
    config = config_lib.get_config(case.data)
    config.update(algorithm=method.algorithm, pre_rounds=0)
    config.model.name = case.model or config.model.name
    return programs.for_case(config, case, dict(method.keys))


def measure(case: Case) -> Side:
    """Builds and compiles the round of every method, and prints its progress.

    Tasks: a round of each, by the method's name. Facts: versions and device, and under 'methods' for each the seconds
    of its compilation, bytes as reported by XLA, and the images that the student sees.
    """
    programs.first_start()
    facts, tasks, start = {**programs.facts(), 'methods': {}}, {}, time.perf_counter()
    for number, method in enumerate(case.methods, start=1):
        print(f'[{number}/{len(case.methods)}] compiling {method.name} …', end=' ', flush=True)
        tasks[method.name], method_facts = prepare(configuration(case, method))
        facts['methods'][method.name] = method_facts
        left = (time.perf_counter() - start) / number * (len(case.methods) - number)
        print(f'{method_facts["compile_s"]:.1f} s; about {math.ceil(left)} s left to compile', flush=True)
    return Side(tasks, facts, programs.device_memory)


def prepare(config: ConfigDict) -> tuple[Callable[[], float], dict]:
    """A round of a method as a task, of which each call runs the next round, and facts about the program."""
    experiment = experiment_lib.build(config)
    stream = Driver([experiment]).inputs(0)
    upcoming = next(stream)
    state = jax.jit(experiment.algorithm.init)(experiment.key)
    k_s = np.int32(config.k_s)
    program, seconds = programs.compiled(experiment.algorithm.round, config, experiment.key, state, *upcoming[:2], k_s)

    def task() -> float:
        nonlocal state, upcoming
        state, metrics = program(experiment.key, state, *upcoming[:2], k_s)
        upcoming = next(stream)  # as in a run: gathered while the device computes
        jax.block_until_ready(state)
        losses = [float(metrics[name]) for name in LOSSES if name in metrics]
        return next((value for value in losses if math.isfinite(value)), math.nan)

    memory = program.memory_analysis()
    return task, {
        'compile_s': seconds,
        'temporary_bytes': memory.temp_size_in_bytes,
        'state_bytes': memory.alias_size_in_bytes,  # donated from one round to the next
        'images': inputs.images_per_round(experiment, inputs.participation(experiment, 0), config.k_s),
    }
