"""The run: from a configuration to a trained model and a folder of outputs, in one scroll.

Everything that can go wrong goes wrong before the folder is touched. After that a run may be killed at any moment:
started again, it goes on from its last checkpoint and writes what the uninterrupted run would have written.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from semisfl_jax import checkpoint, compilation, data, frequency, interrupt, metrics, workdir
from semisfl_jax import config as config_lib
from semisfl_jax import experiment as experiment_lib
from semisfl_jax.errors import UserError
from semisfl_jax.evaluate import make_evaluate
from semisfl_jax.experiment import Experiment
from semisfl_jax.progress import Progress

# The first of what a method measures in a line of metrics.jsonl; the rest follows by name.
FIRST_KEYS = ('lr', 'loss_supervised', 'loss_consistency', 'loss_clustering', 'mask_rate', 'pseudo_label_accuracy')
PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')


class Outputs(NamedTuple):
    """What a run writes to."""

    lines: Path  # metrics.jsonl
    events: metrics.SummaryWriter
    manager: checkpoint.CheckpointManager
    progress: Progress


def run(config: ConfigDict, folder: str | os.PathLike | None = None, name: str = 'run') -> dict[str, Any]:
    """Trains, or goes on training, one experiment.

    Args:
      config: a configuration with the keys of configs/default.py.
      folder: of the outputs; None means runs/NAME-HASH.
      name: of the configuration.

    Returns:
      The content of summary.json.

    Raises:
      UserError: a mistake in the configuration, data that are not there, a folder that cannot serve, or a loss that
        is no longer a number.
      Stopped: the run was asked to stop, and has saved its state.
    """
    config_lib.check(config)
    folder = Path(folder or config_lib.default_workdir(config, name))
    config = config_lib.resolve(config)
    workdir.check(folder, config)
    if summary := workdir.finished(folder, config.rounds):
        print(f'{summary["rounds"]} rounds are done already')
        _print_end(summary, folder)
        return summary

    if config.compilation_cache:
        compilation.keep(data.default_cache_dir() / 'compiled')
    experiment = experiment_lib.build(config)
    workdir.check_partition(folder, experiment.partition)
    print('\n'.join([*experiment_lib.describe(experiment), f'workdir    {folder}']), flush=True)

    key, algorithm, dataset = experiment.key, experiment.algorithm, experiment.dataset
    done, state, controller = _start(experiment, folder)
    stream = experiment_lib.inputs(experiment, done)
    with interrupt.listen() as request:
        upcoming = next(stream)
        jit = partial(compilation.jit, precision=config.precision, deterministic=config.deterministic)
        with _compiling('round') as round_seconds:
            round_ = jit(algorithm.round, donate_argnums=1).lower(key, state, *upcoming, jnp.int32(0)).compile()
        with _compiling('evaluation') as evaluation_seconds:
            test = dataset.test_images, dataset.test_labels
            evaluate = make_evaluate(algorithm.predict, state, *test, config.eval_batch_size, jit)
        if request.signum:
            raise interrupt.Stopped('stopped before the first round: nothing to save', request.signum)

        with _outputs(folder, experiment, done) as out:
            for index in range(done, config.rounds):
                number, k_s = index + 1, int(controller.k_s)
                last = number == config.rounds
                start = time.monotonic()
                state, measured = round_(key, state, *upcoming, jnp.int32(k_s))
                upcoming = None if last else next(stream)  # gathered while the device computes
                measured = jax.device_get(measured)
                seconds = time.monotonic() - start

                _check_losses(experiment, index, measured, folder)
                losses = (float(measured[name]) for name in ('loss_supervised', 'loss_unlabeled', 'lr'))
                controller = frequency.update(controller, experiment.frequency, *losses)
                accuracy = evaluate(state) if last or number % config.eval_every == 0 else {}

                images = experiment_lib.images_per_round(experiment, index, k_s)
                record = _record(number, k_s, measured, accuracy, seconds, images, dataset.fake)
                metrics.append(out.lines, record)
                metrics.log_events(out.events, record)
                out.progress.update(record)

                stop = request.signum and not last
                if last or stop or number % config.checkpoint_every == 0:
                    _check_weights(state, number, folder)
                    checkpoint.save(out.manager, number, {'algorithm': state, 'frequency': controller})
                if stop:
                    message = f'stopped after round {number}; the same command goes on from there'
                    raise interrupt.Stopped(message, request.signum)

            summary = _summary(experiment, metrics.read(out.lines), round_seconds[0], evaluation_seconds[0])
            metrics.write_json(folder / 'summary.json', summary)
    _print_end(summary, folder)
    return summary


def _start(experiment: Experiment, folder: Path) -> tuple[int, Any, frequency.FrequencyState]:
    """Rounds done, state and K_s controller: those of the last checkpoint, or the initial ones."""
    key, config = experiment.key, experiment.config
    init = jax.jit(experiment.algorithm.init)
    controller = frequency.init(config.k_s, experiment.frequency)
    restored = checkpoint.restore(
        folder / 'checkpoints', {'algorithm': jax.eval_shape(init, key), 'frequency': controller}
    )
    if restored is None:
        return 0, init(key), controller
    if restored.round > config.rounds:
        raise UserError(
            f'{folder} is at round {restored.round} already, beyond config.rounds={config.rounds}; ask for more rounds'
        )
    metrics.check_rounds(folder / 'metrics.jsonl', restored.round)
    print(f'going on from the checkpoint of round {restored.round}', flush=True)
    return restored.round, jax.tree.map(jnp.array, restored.state['algorithm']), restored.state['frequency']


@contextmanager
def _compiling(what: str) -> Iterator[list[float]]:
    """Announces a compilation; the seconds it took are put into the list."""
    print(f'compiling the {what} …', end=' ', flush=True)
    seconds: list[float] = []
    start = time.monotonic()
    with compilation.count() as programs:
        yield seconds
    seconds.append(time.monotonic() - start)
    print(f'{seconds[0]:.1f} s{" (kept from an earlier start)" if programs.hits else ""}', flush=True)


@contextmanager
def _outputs(folder: Path, experiment: Experiment, done: int) -> Iterator[Outputs]:
    """Opens all that a run writes to; what an interrupted run wrote after round `done` is cut off."""
    config = experiment.config
    with workdir.hold(folder, config, experiment.partition):
        metrics.cut_back(folder / 'metrics.jsonl', done)
        out = Outputs(
            lines=folder / 'metrics.jsonl',
            events=metrics.open_events(folder / 'tensorboard', done + 1),
            manager=checkpoint.open_manager(folder / 'checkpoints', config.checkpoints_kept),
            progress=Progress(done, config.rounds, experiment.algorithm.headline),
        )
        try:
            yield out
        finally:
            out.progress.close()
            out.events.close()
            out.manager.close()


def _check_losses(experiment: Experiment, index: int, measured: dict[str, np.ndarray], folder: Path) -> None:
    """Ends the run when a loss of round `index` that is trained on is not a number, or infinite."""
    every_loss = experiment_lib.has_cross_entity_phase(experiment, index)
    for name, value in measured.items():
        if name.startswith('loss_' if every_loss else 'loss_supervised') and not math.isfinite(value):
            raise UserError(f'{name} is {value} in round {index + 1}: stopped. {_kept(folder)}')


@jax.jit
def _all_finite(state) -> jax.Array:
    floats = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in floats]))


def _check_weights(state: Any, number: int, folder: Path) -> None:
    """Ends the run rather than save weights that the last step of a round has spoilt."""
    if not _all_finite(state):
        raise UserError(f'weights are infinite or not a number after round {number}: stopped. {_kept(folder)}')


def _kept(folder: Path) -> str:
    saved = checkpoint.rounds_saved(folder / 'checkpoints')
    kept = f'The checkpoint of round {saved[-1]} is kept' if saved else 'There was no checkpoint yet'
    return f'{kept} in {folder}; a lower config.lr may help'


def _record(
    number: int,
    k_s: int,
    measured: dict[str, np.ndarray],
    accuracy: dict[str, float],
    seconds: float,
    images: int,
    fake: bool,
) -> dict[str, Any]:
    """A line of metrics.jsonl; see `metrics.plain` for the numbers."""
    names = [*FIRST_KEYS, *sorted(measured.keys() - set(FIRST_KEYS))]
    return {
        'round': number,
        'k_s': k_s,
        **{name: metrics.plain(measured[name]) for name in names},
        **{f'{model}_accuracy': accuracy[model] for model in sorted(accuracy, reverse=True)},
        'wall_seconds': round(seconds, 4),
        'images_per_second': round(images / seconds, 1),
        **({'fake': True} if fake else {}),
    }


def _summary(
    experiment: Experiment, records: list[dict[str, Any]], round_seconds: float, evaluation_seconds: float
) -> dict[str, Any]:
    """The content of summary.json. Memory and compile time are those of the last process of the run."""
    config, device = experiment.config, jax.devices()[0]
    on_device = (device.memory_stats() or {}).get('peak_bytes_in_use')
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == 'darwin' else 1024)
    return {
        'algorithm': config.algorithm,
        'data': experiment.dataset.name,
        'fake': experiment.dataset.fake,
        'seed': config.seed,
        **metrics.summarize(records, experiment.algorithm.headline),
        'compile_seconds': round(round_seconds, 3),
        'compile_seconds_evaluation': round(evaluation_seconds, 3),
        'peak_memory_bytes': on_device or resident,
        'peak_memory_of': 'device' if on_device else 'process',
        'device': f'{device.platform} ({device.device_kind})',
        'versions': {
            'python': platform.python_version(),
            **{name: importlib.metadata.version(name) for name in PACKAGES},
        },
        'config_hash': config_lib.identity_hash(config),
        'partition_hash': experiment.partition.content_hash,
    }


def _print_end(summary: dict[str, Any], folder: Path) -> None:
    fake = ' on FAKE data' if summary['fake'] else ''
    print(
        f'{summary["headline"]} accuracy{fake} {summary["final_accuracy"]:.2%} after {summary["rounds"]} rounds '
        f'(mean of the last 10 evaluations {summary["mean_of_last_10_evaluations"]:.2%}, '
        f'best {summary["best_accuracy"]:.2%})\noutputs in {folder}',
        flush=True,
    )
