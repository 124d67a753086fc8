"""The training loop, from a configuration to a trained model and, on request, a folder of outputs.

Configuration, data and programs are checked before the folder is modified. After that a run may be killed at any time:
when restarted, it resumes from its last checkpoint and writes the same outputs as an uninterrupted run.

Several processes may compute one run (`hosts`): all execute this loop in lockstep, and process 0 writes and reports.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from semisfl_jax import config as config_lib
from semisfl_jax import costs, data
from semisfl_jax.config.resolve import count_devices
from semisfl_jax.core import file_io, hosts, machine
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.frequency import FrequencyState
from semisfl_jax.core.types import Array, Cohort, Federation
from semisfl_jax.training import (
    contract,
    diagnostics,
    events,
    files,
    finite,
    global_loss,
    inputs,
    interrupt,
    memory,
    metrics,
    result,
    resume,
    simulation,
    summary,
    totals,
)
from semisfl_jax.training import trials as trials_lib
from semisfl_jax.training.arguments import check_interrupts, check_listener, folder_of
from semisfl_jax.training.describe import describe
from semisfl_jax.training.evaluate import Scores
from semisfl_jax.training.experiment import Experiment
from semisfl_jax.training.interrupt import Request, Stopped
from semisfl_jax.training.result import Records, Result
from semisfl_jax.training.totals import RunTotals


def train(
    config: ConfigDict,
    folder: str | os.PathLike | None = None,
    on_event: events.Listener | None = None,
    interrupts: Callable[[], AbstractContextManager[Request]] = interrupt.ignore,
) -> Result:
    """Trains one experiment, or resumes it: one trial, or one for each of several seeds.

    Nothing is printed. `training.console` has the listener with which the command prints.

    Args:
      config: a configuration with the keys of configs/default.py.
      folder: the output folder, from which an interrupted run resumes. None writes no files and saves no checkpoints.
      on_event: called in process 0 with everything that the run reports, see `training.events`.
      interrupts: a block around the rounds that may ask to stop after the current one, such as `interrupt.listen`,
        with which Ctrl-C, or the stop button of a notebook, saves the state first.

    Raises:
      UserError: an invalid configuration or argument, missing data, an unusable folder, a folder with more rounds
        than `config.rounds`.
      Diverged: a loss or a weight became NaN or infinite.
      Stopped: `interrupts` asked for it; the state is saved if at least one round was done and there is a folder.
    """
    config_lib.check(config)
    return train_resolved(config_lib.resolve(config), folder, on_event, interrupts)


@memory.explained
def train_resolved(
    config: ConfigDict,
    folder: str | os.PathLike | None = None,
    on_event: events.Listener | None = None,
    interrupts: Callable[[], AbstractContextManager[Request]] = interrupt.ignore,
) -> Result:
    """As `train`, for a configuration that is checked and resolved."""
    folder = folder_of(folder)
    check_listener(on_event)
    check_interrupts(interrupts)
    if config.diagnostics_every and folder is None and on_event is None:
        raise UserError(
            f'config.diagnostics_every={config.diagnostics_every}: diagnostics are written to the folder of the run; '
            'give a folder, or leave it at 0'
        )
    hosts.join(config.parallel.coordinator, config.parallel.num_processes, config.parallel.process_id)
    listeners = [on_event] if on_event else []
    tell = partial(_tell, listeners)
    if folder and (finished := hosts.from_first(lambda: files.finished(folder, config))):
        tell(events.Finished(finished, folder, earlier=True))
        return result.read(folder, config, finished)
    if config.compilation_cache:
        machine.cache_programs(data.default_cache_dir() / 'compiled')
    of_trials = count_devices(config) if config.seeds else 1
    trials = resume.build(config, folder)
    tell(events.Described(describe(trials, of_trials), folder))
    batch = trials_lib.batch(trials, config.parallel.trials, of_trials)
    run = Training(trials, batch, resume.homes(trials, folder, config), config, folder, listeners)
    progress = _start(run)
    seen = files.contents(run.homes)
    stream = batch.inputs(progress.round)
    with interrupts() as request:
        return _train(run, progress, seen, stream, request)


class Training(NamedTuple):
    """A run that is about to train."""

    trials: list[Experiment]  # [R]
    batch: trials_lib.Batch  # of them
    homes: list[files.Home]  # [R], or [] without a folder
    config: ConfigDict  # resolved
    folder: Path | None
    listeners: list[events.Listener]

    def tell(self, event: events.Event) -> None:
        """Reports an event."""
        _tell(self.listeners, event)


class LoopState(NamedTuple):
    """Where a run stands between two rounds."""

    round: int  # rounds completed
    state: Any  # of all trials, see `trials.Batch`
    controllers: list[FrequencyState]  # [R], of K_s
    accounts: list[RunTotals]  # [R]
    records: list[Records]  # [R], so far


class Programs(NamedTuple):
    """What a run compiles before its first round."""

    round: Callable[..., tuple[Any, Any]]  # as `Batch.round`
    evaluate: list[Callable[[Any], Scores]]  # [R], of the state of each trial
    global_loss: list[Callable[[Any], float]]  # likewise, [] if the method has none
    trivial_scores: list[dict[str, dict[str, float | None]]]  # [R], which depend on no state
    diagnose: Callable[..., dict[str, np.ndarray]] | None
    seconds: dict[str, float]  # {program: duration of its compilation}


def _train(
    run: Training,
    progress: LoopState,
    seen: list[tuple[list[int], bool]],
    stream: Iterator[tuple[Federation, Cohort]],
    request: Request,
) -> Result:
    """Trains up to the last round; `seen` is what the folder held when the run was restored."""
    config, batch = run.config, run.batch
    upcoming = next(stream)
    programs = _compile(run, progress, upcoming)
    if signum := hosts.largest(request.signum):
        raise Stopped(f'stopped before round {progress.round + 1}: nothing to save', signum)
    with ExitStack() as stack:
        folder = run.folder
        if folder:
            writer = files.writer(run.homes, folder, config, progress.round, seen)
            if write := hosts.on_first(lambda: stack.enter_context(writer)):
                run = run._replace(listeners=[write, *run.listeners])
        run.tell(events.Started(progress.round, config.rounds, run.trials[0].headline))
        for index in range(progress.round, config.rounds):
            start = time.monotonic()
            state, measured = programs.round(batch.key, progress.state, *upcoming, _iterations(run, progress))
            if index + 1 < config.rounds:
                upcoming = next(stream)  # gathered while the device computes
            measured, counted = jax.device_get((measured, state.round))
            seconds = time.monotonic() - start
            contract.check_counted(run.trials[0].method.name, counted, index + 1)
            progress = _after_round(run, programs, progress._replace(state=state), measured, seconds)
            _save(run, progress, request)
        summaries, run_summary = hosts.from_first(lambda: _summarize(run, programs, progress))
        if folder:
            hosts.on_first(lambda: files.write_summaries(run.homes, folder, summaries, run_summary))
    run.tell(events.Finished(run_summary, folder, earlier=False))
    states = _parts(run, progress.state)
    records = progress.records
    return Result(run_summary, lambda: records, lambda: states if config.seeds else states[0])


def _tell(listeners: Sequence[events.Listener], event: events.Event) -> None:
    """Reports an event in process 0, where an error ends all processes."""
    hosts.on_first(lambda: [listen(event) for listen in listeners])


@machine.without_collecting()
def _start(run: Training) -> LoopState:
    """The state of the last checkpoints, or the initial state."""
    first = run.trials[0]
    controller = simulation.init_controller(first)
    restored = resume.restore(run.homes, run.config.rounds) if run.homes else None
    if restored is None:
        init = simulation.init_state(first).lower(first.key).compile()
        with hosts.together():
            memory.check('initial state', init, run.config)
        states = [init(trial.key) for trial in run.trials]
        controllers, accounts = [controller for _ in states], [RunTotals() for _ in states]
        return LoopState(0, run.batch.stack(states), controllers, accounts, [[] for _ in states])
    run.tell(events.Resumed(restored.round))
    states = resume.on_devices(first, restored)
    controllers = [tree['frequency'] for tree in restored.state]
    accounts = list(map(totals.from_json, restored.notes))
    records = hosts.from_first(lambda: [metrics.read(home.lines, restored.round) for home in run.homes])
    return LoopState(restored.round, run.batch.stack(states), controllers, accounts, records)


@machine.without_collecting()
def _compile(run: Training, progress: LoopState, inputs_of_round: tuple) -> Programs:
    """Compiles the round, whose state is donated, and the evaluation; the diagnostics compile when first due."""
    batch, config, first = run.batch, run.config, run.trials[0]
    jit = simulation.compile_with(config)
    seconds: dict[str, float] = {}
    with _compiling('round', seconds, run.tell):
        arguments = batch.key, progress.state, *inputs_of_round, _iterations(run, progress)
        lowered = jit(batch.round, donate_argnums=1).lower(*arguments)
        named = first.method.name, first.method.metrics, lowered.out_info[1]
        hosts.on_first(lambda: contract.warn_misspelt(*named))
        with ThreadPoolExecutor(1) as beside:  # XLA leaves Python free
            beside.submit(costs.prepare, first.costs)
            round_ = lowered.compile()
    with hosts.together():
        memory.check('compiled round', round_, config)
    with _compiling('evaluation', seconds, run.tell):
        like = jax.eval_shape(lambda state: batch.part(state, 0), progress.state)
        images = simulation.evaluated(run.trials)
        evaluate = simulation.build_evaluate(run.trials, like, images)
        trivial_scores = simulation.trivial_scores(run.trials, images)
        of_clients = global_loss.build(run.trials, like, jit)
    if first.costs.enabled:  # a price that cannot be billed says so before anything is written
        index = max(progress.round, config.pre_rounds)
        costs.price_round(first.costs, index, 1, inputs.participation(first, index))
    diagnose = diagnostics.build(first, jit) if config.diagnostics_every else None
    return Programs(round_, evaluate, of_clients, trivial_scores, diagnose, seconds)


@contextmanager
def _compiling(program: str, seconds: dict[str, float], tell: events.Listener) -> Iterator[None]:
    """Reports a compilation and records its duration in seconds."""
    tell(events.Compiling(program))
    start = time.monotonic()
    with machine.count_compilations() as programs:
        yield
    seconds[program] = time.monotonic() - start
    tell(events.Compiled(program, seconds[program], cached=programs.hits > 0))


def _iterations(run: Training, progress: LoopState) -> Array | np.int32:
    """K_s of the next round, [R] for R trials."""
    return run.batch.stack([np.int32(controller.k_s) for controller in progress.controllers])


def _parts(run: Training, tree: Any) -> list[Any]:
    """What belongs to each of the R trials."""
    return [run.batch.part(tree, r) for r in range(len(run.trials))]


def _after_round(
    run: Training,
    programs: Programs,
    progress: LoopState,
    measured: dict[str, np.ndarray],
    seconds: float,
) -> LoopState:
    """Checks, evaluates and reports a round.

    Args:
      run, programs: of the run.
      progress: before the round, except for the state, which is that after it.
      measured: the metrics of the round, of all trials.
      seconds: its duration.
    """
    config, trials, index, number = run.config, run.trials, progress.round, progress.round + 1
    last = number == config.rounds
    clients = [inputs.participation(trial, index) for trial in trials]
    results = map(simulation.after_round, trials, progress.controllers, _parts(run, measured), clients)
    of_trials, controllers = map(list, zip(*results, strict=True))
    for prefix, folder, values, cohort in zip(_names(run), _folders(run), of_trials, clients, strict=True):
        finite.check_losses(prefix, folder, index, values, cohort, config)

    k_s = [int(controller.k_s) for controller in progress.controllers]
    scores: list[Scores] = [{} for _ in trials]
    if last or number % config.eval_every == 0:
        states = _parts(run, progress.state)
        scores = [evaluate(state) for evaluate, state in zip(programs.evaluate, states, strict=True)]
        for values, measure, state in zip(of_trials, programs.global_loss, states, strict=False):
            values[global_loss.NAME] = np.float32(measure(state))
    if programs.diagnose and (last or number % config.diagnostics_every == 0):
        states = _parts(run, progress.state)
        arrays = [programs.diagnose(*trial, number, steps) for *trial, steps in zip(trials, states, k_s, strict=True)]
        run.tell(events.Diagnosed(number, arrays))

    images = sum(map(inputs.images_per_round, trials, [index] * len(trials), k_s, of_trials))
    bills = totals.after_round(trials, index, k_s, of_trials, [account.bill for account in progress.accounts])
    entries = map(totals.entries, trials, clients, bills)
    marks = summary.marks(trials[0])
    records = [
        summary.record(number, *of_trial, seconds, images, marks)
        for of_trial in zip(k_s, of_trials, scores, entries, strict=True)
    ]
    run.tell(events.RoundDone(records))
    for lines, record in zip(progress.records, records, strict=True):
        lines.append(record)  # in place: copies of all lines in every round would add up
    pay = partial(totals.update, headline=trials[0].headline, tasks=trials[0].score_keys)
    return progress._replace(
        round=number,
        controllers=controllers,
        accounts=list(map(pay, progress.accounts, bills, records)),
    )


def _save(run: Training, progress: LoopState, request: Request) -> None:
    """Saves the state if it is due, or if the run was asked to stop.

    Raises:
      Diverged: the state is not finite.
      Stopped: the run was asked to stop before its last round.
    """
    number, last = progress.round, progress.round == run.config.rounds
    signum = 0 if last else hosts.largest(request.signum)
    if last or signum or number % run.config.checkpoint_every == 0:
        states = _parts(run, progress.state)
        for prefix, folder, state in zip(_names(run), _folders(run), states, strict=True):
            finite.check_weights(prefix, folder, number, state, run.config)
        run.tell(events.Snapshot(number, states, progress.controllers, progress.accounts))
    if signum:
        advice = 'the same command resumes from there' if run.folder else 'nothing is saved without a folder'
        raise Stopped(f'stopped after round {number}; {advice}', signum)


def _names(run: Training) -> list[str]:
    """What messages about each trial begin with: 'seed 3: ', or '' if there is only one."""
    return [f'seed {seed}: ' for seed in run.config.seeds] or ['']


def _folders(run: Training) -> list[Path | None]:
    return [home.folder for home in run.homes] or [None for _ in run.trials]


def _summarize(run: Training, programs: Programs, progress: LoopState) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The summary of every trial and that of the run, which is the same for a single trial."""
    summaries = [
        file_io.seal(summary.of_trial(trial, account, trivial_scores, programs.seconds, len(run.trials)))
        for trial, account, trivial_scores in zip(run.trials, progress.accounts, programs.trivial_scores, strict=True)
    ]
    if not run.config.seeds:
        return summaries, summaries[0]
    return summaries, file_io.seal(summary.of_trials(run.config, run.batch.map, summaries))
