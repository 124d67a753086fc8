"""The training run, from a configuration to a trained model and a folder of outputs.

Configuration, data and programs are checked before the folder is modified. After that a run may be killed at any time:
when restarted, it resumes from its last checkpoint and writes the same outputs as an uninterrupted run.

Several processes may compute one run (`hosts`): all execute this loop in lockstep, and process 0 writes.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from semisfl_jax import config as config_lib
from semisfl_jax import data, failures, frequency, parallel
from semisfl_jax import diagnostics as diagnostics_lib
from semisfl_jax.errors import UserError, warn
from semisfl_jax.parallel import compilation, hosts
from semisfl_jax.training import (
    checkpoint,
    finite,
    inputs,
    interrupt,
    memory,
    metrics,
    summary,
    totals,
    workdir,
)
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training import trials as trials_lib
from semisfl_jax.training.evaluate import make_evaluate
from semisfl_jax.training.experiment import Experiment
from semisfl_jax.training.footprint import Share
from semisfl_jax.training.progress import Progress
from semisfl_jax.training.simulation import ADAPTS_TO
from semisfl_jax.training.totals import Account


class Trial(NamedTuple):
    """One seed of a run; most runs have only one."""

    experiment: Experiment
    folder: Path
    name: str  # prefix of messages about this trial: 'seed 3: ', or '' if it is the only one

    @property
    def identity(self) -> checkpoint.Identity:
        """The identity stored in its checkpoints."""
        return experiment_lib.identity(self.experiment.config, self.experiment.partition)


class Outputs(NamedTuple):
    """The outputs of a trial."""

    lines: Path  # metrics.jsonl
    events: metrics.SummaryWriter
    manager: checkpoint.CheckpointManager


def _footprint(config: ConfigDict) -> list[Share]:
    return experiment_lib.footprint(config_lib.resolve(config), trials=max(1, len(config.seeds)))


@memory.explained(_footprint)
def run(config: ConfigDict, folder: str | os.PathLike | None = None, name: str = 'run') -> dict[str, Any]:
    """Trains one experiment, or resumes it: one trial, or one for each of several seeds.

    Args:
      config: a configuration with the keys of configs/default.py.
      folder: the output folder; None means runs/NAME-HASH.
      name: name of the configuration.

    Returns:
      The content of summary.json.

    Raises:
      UserError: an invalid configuration, missing data, an unusable folder, or a loss that became NaN or infinite.
      Stopped: the run was asked to stop; its state is saved if at least one round was done.
    """
    config_lib.check(config)
    hosts.join(config.parallel.coordinator, config.parallel.num_processes, config.parallel.process_id)
    folder = Path(folder or config_lib.default_workdir(config, name))
    config = config_lib.resolve(config)
    if before := hosts.from_first(lambda: _finished(folder, config)):
        hosts.say(f'{before["rounds"]} rounds are done already\n{summary.final_message(before, folder)}', flush=True)
        return before

    if config.compilation_cache:
        compilation.keep(data.default_cache_dir() / 'compiled')
    trials = _build(config, folder)
    experiments = [trial.experiment for trial in trials]
    hosts.say('\n'.join([*experiment_lib.describe(experiments), f'workdir    {folder}']), flush=True)

    batch, trial_indices = (
        trials_lib.batch(experiments, config.parallel.trials, config.parallel.devices),
        range(len(trials)),
    )
    algorithm, dataset, mesh = experiments[0].algorithm, experiments[0].dataset, experiments[0].mesh
    done, state, controllers, accounts = _start(trials, batch)
    stream = batch.inputs(done)
    with interrupt.listen() as request:
        upcoming = next(stream)
        jit = partial(compilation.jit, precision=config.precision, deterministic=config.deterministic)
        compile_seconds: dict[str, float] = {}
        with _compiling('round', compile_seconds):
            arguments = batch.key, state, *upcoming, _iterations(batch, controllers)
            round_ = jit(batch.round, donate_argnums=1).lower(*arguments).compile()
        with hosts.together():
            memory.check_program('round', round_, config, _footprint)
        with _compiling('evaluation', compile_seconds):
            like = parallel.like(mesh, jax.eval_shape(partial(batch.part, r=0), state))
            test = dataset.test_images, dataset.test_labels
            place = partial(parallel.replicate, mesh) if mesh else jax.device_put
            evaluate = make_evaluate(algorithm.predict, like, *test, config.eval_batch_size, jit, place)
        diagnose = diagnostics_lib.build(experiments[0], jit) if config.diagnostics_every else None
        if signum := hosts.largest(request.signum):
            raise interrupt.Stopped('stopped before the first round: nothing to save', signum)

        with ExitStack() as stack:
            outputs = hosts.on_first(lambda: stack.enter_context(_outputs(trials, folder, config, done)))
            bar = closing(Progress(done, config.rounds, algorithm.headline)) if hosts.first() else nullcontext()
            progress = stack.enter_context(bar)
            for index in range(done, config.rounds):
                number = index + 1
                last = number == config.rounds
                start = time.monotonic()
                state, measured = round_(batch.key, state, *upcoming, _iterations(batch, controllers))
                upcoming = None if last else next(stream)  # gathered while the device computes
                measured = jax.device_get(measured)
                seconds = time.monotonic() - start

                clients = [inputs.participation(own, index) for own in experiments]
                measured = [failures.of_survivors(batch.part(measured, r), clients[r]) for r in trial_indices]
                for trial, metrics_of_trial, fared in zip(trials, measured, clients, strict=True):
                    finite.check_losses(trial.name, trial.folder, index, metrics_of_trial, fared)
                k_s = [int(controller.k_s) for controller in controllers]
                controllers = [
                    frequency.update(
                        old, own.frequency, *(float(metrics_of_trial.get(key, math.nan)) for key in ADAPTS_TO)
                    )
                    for old, own, metrics_of_trial in zip(controllers, experiments, measured, strict=True)
                ]
                accuracy = [{} for _ in trial_indices]
                if last or number % config.eval_every == 0:
                    accuracy = [evaluate(batch.part(state, r)) for r in trial_indices]

                if config.diagnostics_every and (last or number % config.diagnostics_every == 0):
                    arrays = [diagnose(own, batch.part(state, r), number, k_s[r]) for r, own in enumerate(experiments)]
                    hosts.on_first(partial(_write_diagnostics, trials, number, arrays))

                images = sum(map(inputs.images_per_round, experiments, [index] * len(trials), k_s, measured))
                bills = totals.after_round(experiments, index, k_s, measured, [own.bill for own in accounts])
                entries = map(totals.entries, experiments, clients, bills)
                records = [
                    summary.record(number, *own, seconds, images, dataset.fake)
                    for own in zip(k_s, measured, accuracy, entries, strict=True)
                ]
                accounts = list(map(partial(totals.pay, headline=algorithm.headline), accounts, bills, records))
                hosts.on_first(partial(_write, outputs, progress, records))

                signum = hosts.largest(request.signum)
                stop = signum and not last
                if last or stop or number % config.checkpoint_every == 0:
                    states = [batch.part(state, r) for r in trial_indices]
                    for trial, own in zip(trials, states, strict=True):
                        finite.check_weights(trial.name, trial.folder, number, own)
                    hosts.on_first(partial(_save, trials, outputs, number, states, controllers, accounts))
                if stop:
                    message = f'stopped after round {number}; the same command resumes from there'
                    raise interrupt.Stopped(message, signum)

            final = hosts.from_first(
                lambda: _write_summaries(trials, config, folder, batch.map, compile_seconds, accounts)
            )
    hosts.say(summary.final_message(final, folder), flush=True)
    return final


def _finished(folder: Path, config: ConfigDict) -> dict[str, Any] | None:
    """The content of summary.json if the run is done, else None. Also checks that `folder` is usable.

    A run whose summary was modified does not count as done: it resumes from its last checkpoint and rewrites it.
    """
    workdir.check(folder, config)
    summary_, _ = workdir.summary_of(folder, config)
    if summary_ is None or summary_['rounds'] < config.rounds:
        return None
    own = [
        (home, *workdir.summary_of(home, alone))
        for home, alone in zip(workdir.of_trials(folder, config), config_lib.trials(config), strict=True)
    ]
    if any(fault for *_, fault in own):
        return None
    for home, written, _ in own:
        if written:
            _compare_lines(home, written['rounds'], written['metrics_sha256'])
    return summary_


def _compare_lines(folder: Path, rounds: int, checksum: str) -> None:
    """Warns if metrics.jsonl differs from what the run wrote up to round `rounds`."""
    try:
        fault = metrics.fault(folder / 'metrics.jsonl', rounds, checksum)
    except UserError as error:
        fault = str(error)
    if fault:
        warn(f'{fault}; checkpoints, later lines and summary.json do not depend on it, plots and comparisons do')


def _build(config: ConfigDict, folder: Path) -> list[Trial]:
    """The trials of `config` (resolved), each with a folder that was checked to be usable."""
    configs, folders = config_lib.trials(config), workdir.of_trials(folder, config)
    for own, home in zip(configs, folders, strict=True):
        hosts.on_first(partial(workdir.check, home, own))
    with hosts.together():
        experiments = experiment_lib.build_trials(configs)
    for own, home in zip(experiments, folders, strict=True):
        hosts.on_first(partial(workdir.check_partition, home, own.partition))
    hosts.check_same('the data or their split', [own.partition.content_hash for own in experiments])
    names = [f'seed {own.seed}: ' if config.seeds else '' for own in configs]
    return list(map(Trial, experiments, folders, names))


class Start(NamedTuple):
    """The starting point of a run with one or more trials."""

    rounds: int  # rounds completed
    state: Any
    controllers: list[frequency.FrequencyState]  # of K_s
    totals: list[Account]


def _start(trials: list[Trial], batch: trials_lib.Batch) -> Start:
    """The state of the last checkpoints, or the initial state."""
    experiment, config = trials[0].experiment, trials[0].experiment.config
    init = jax.jit(experiment.algorithm.init, out_shardings=parallel.replicated(experiment.mesh))
    controller = frequency.init(config.k_s, experiment.frequency)
    template = {'algorithm': jax.eval_shape(init, experiment.key), 'frequency': controller}
    restored = hosts.from_first(lambda: _restore(trials, config.rounds, template))
    if restored is None:
        states = [init(trial.experiment.key) for trial in trials]
        return Start(0, batch.stack(states), [controller for _ in trials], [Account() for _ in trials])
    hosts.say(f'resuming from the checkpoint of round {restored.round}', flush=True)
    mesh = experiment.mesh
    states = [parallel.replicate(mesh, jax.tree.map(jnp.array, own['algorithm'])) for own in restored.state]
    controllers = [own['frequency'] for own in restored.state]
    return Start(restored.round, batch.stack(states), controllers, list(map(totals.from_json, restored.notes)))


def _restore(trials: list[Trial], rounds: int, template: Any) -> checkpoint.Restored | None:
    """The last checkpoints of the trials, for a run of `rounds` rounds in total; None if there are none."""
    folders = [trial.folder for trial in trials]
    saved = [folder / 'checkpoints' for folder in folders]
    restored = checkpoint.restore_all(saved, template, [own.identity for own in trials])
    # If some trials have a checkpoint and others none, the run was killed at its first save, after the lines of
    # these rounds had been written for all. Anything else is not such a run, and must not be overwritten.
    behind = restored.round if restored else max((checkpoint.rounds_saved(own) or [0])[-1] for own in saved)
    if behind > rounds:
        raise UserError(
            f'{folders[0]} is at round {behind} already, beyond config.rounds={rounds}; ask for more rounds'
        )
    for folder in folders:
        if not behind and os.path.lexists(folder / workdir.SUMMARY):
            raise UserError(
                f'{folder} holds a {workdir.SUMMARY} and no checkpoint to resume from; restore its checkpoints, or '
                'choose another --workdir'
            )
        metrics.check_rounds(folder / 'metrics.jsonl', behind)
    if restored:
        for folder, notes in zip(folders, restored.notes, strict=True):
            _compare_lines(folder, restored.round, notes['metrics_sha256'])
    return restored


def _iterations(batch: trials_lib.Batch, controllers: list[frequency.FrequencyState]):
    """K_s of the next round, [R] for R trials."""
    return batch.stack([np.int32(controller.k_s) for controller in controllers])


@contextmanager
def _compiling(what: str, seconds: dict[str, float]) -> Iterator[None]:
    """Announces a compilation and records its duration in seconds."""
    hosts.say(f'compiling the {what} …', end=' ', flush=True)
    start = time.monotonic()
    with compilation.count() as programs:
        yield
    seconds[what] = time.monotonic() - start
    hosts.say(f'{seconds[what]:.1f} s{" (kept from an earlier start)" if programs.hits else ""}', flush=True)


@contextmanager
def _outputs(trials: list[Trial], folder: Path, config: ConfigDict, done: int) -> Iterator[list[Outputs]]:
    """Opens all outputs of a run and truncates what an interrupted run wrote after round `done`."""
    kept = config.checkpoints_kept
    with ExitStack() as stack:
        if config.seeds:
            stack.enter_context(workdir.hold(folder, config, None))
            kept = max(kept, 2)  # trials are saved one after another, and all must share one complete round
        for experiment, home, _ in trials:
            stack.enter_context(workdir.hold(home, experiment.config, experiment.partition))
            workdir.set_aside_summary(home, experiment.config)
        if config.seeds:
            workdir.set_aside_summary(folder, config)
        outputs = []
        for _, home, _ in trials:
            metrics.cut_back(home / 'metrics.jsonl', done)
            checkpoint.cut_back(home / 'checkpoints', done)
            diagnostics_lib.cut_back(home, done)
            manager = stack.enter_context(closing(checkpoint.open_manager(home / 'checkpoints', kept)))
            events = stack.enter_context(closing(metrics.open_events(home / 'tensorboard', done + 1)))
            outputs.append(Outputs(home / 'metrics.jsonl', events, manager))
        yield outputs


def _write(outputs: list[Outputs], progress: Progress, records: list[dict[str, Any]]) -> None:
    """Writes the records of a round."""
    for out, record in zip(outputs, records, strict=True):
        metrics.append(out.lines, record)
        metrics.log_events(out.events, record)
    progress.update(*records)


def _write_diagnostics(trials: list[Trial], number: int, found: list[dict[str, np.ndarray]]) -> None:
    """Writes the diagnostic arrays after round `number`."""
    for trial, arrays in zip(trials, found, strict=True):
        diagnostics_lib.save(trial.folder, number, arrays)


def _save(
    trials: list[Trial],
    outputs: list[Outputs],
    number: int,
    states: list[Any],
    controllers: list[frequency.FrequencyState],
    accounts: list[Account],
) -> None:
    """Writes the checkpoints after round `number`."""
    for trial, out, own, controller, account in zip(trials, outputs, states, controllers, accounts, strict=True):
        tree = {'algorithm': own, 'frequency': controller}
        checkpoint.save(out.manager, number, tree, trial.identity, totals.to_json(account))


def _write_summaries(
    trials: list[Trial],
    config: ConfigDict,
    folder: Path,
    trial_map: str,
    compile_seconds: dict[str, float],
    accounts: list[Account],
) -> dict[str, Any]:
    """Writes summary.json of every trial and, with several seeds, that of the run; returns the last one written."""
    written = []
    for (experiment, home, _), account in zip(trials, accounts, strict=True):
        own = summary.of_trial(experiment, account, compile_seconds, len(trials))
        written.append(workdir.write_summary(home, own))
    if not config.seeds:
        return written[0]
    return workdir.write_summary(folder, summary.of_trials(config, trial_map, written))
