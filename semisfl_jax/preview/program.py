"""Compiles the round and the evaluation of an experiment for devices, and asks the compiler what they need."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from semisfl_jax.preview import shapes
from semisfl_jax.preview.targets import Devices, Target
from semisfl_jax.training import memory
from semisfl_jax.training.evaluation import counting
from semisfl_jax.training.experiment import Experiment, compile_with
from semisfl_jax.training.memory import Memory

_LOWERED_FOR = {'cpu': 'cpu', 'gpu': 'cuda', 'tpu': 'tpu'}
# Autotuning would run kernels on the device. A run does it, so kernels of products may differ from those seen here.
_OPTIONS: dict[str, dict[str, str | int]] = {'gpu': {'xla_gpu_autotune_level': 0}}


class Program(NamedTuple):
    """A compiled program."""

    seconds: float  # of tracing and compiling, on this machine
    memory: Memory
    text: str  # optimized HLO


class Refused(NamedTuple):
    """A program that the compiler refused."""

    reason: str  # in its words
    for_memory: bool  # whether it needs more than the device has


def compile_round(experiment: Experiment, target: Target, devices: Devices) -> Program | Refused:
    """The round, with the state donated as in a run."""
    arguments = shapes.of_round(experiment, devices)
    return _compiled(experiment, experiment.algorithm.round, arguments, target, donate_argnums=1)


def compile_evaluation(experiment: Experiment, target: Target, devices: Devices) -> Program | Refused:
    """The evaluation on the whole test set."""
    counts = counting(experiment.algorithm.predict, experiment.task_of)
    return _compiled(experiment, counts, shapes.of_evaluation(experiment, devices), target)


def _compiled(
    experiment: Experiment, function: Callable, arguments: Any, target: Target, **options: Any
) -> Program | Refused:
    start = time.monotonic()
    traced = compile_with(experiment.config)(function, **options).trace(*arguments)
    lowered = traced.lower(lowering_platforms=(_LOWERED_FOR[target.platform],))
    try:
        compiled = lowered.compile(compiler_options=_OPTIONS.get(target.platform))
    except jax.errors.JaxRuntimeError as error:
        return Refused(str(error), for_memory=memory.ran_out(error))
    seconds = time.monotonic() - start
    return Program(seconds, memory.of_program(compiled), compiled.as_text())
