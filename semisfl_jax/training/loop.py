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
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from semisfl_jax import config as config_lib
from semisfl_jax import core, costs, data
from semisfl_jax.config.resolve import count_devices
from semisfl_jax.core import file_io, frequency, hosts, machine
from semisfl_jax.core.frequency import FrequencyState
from semisfl_jax.training import (
    checks,
    diagnostics,
    evaluation,
    events,
    inputs,
    interrupt,
    load,
    memory,
    metrics,
    outputs,
)
from semisfl_jax.training.describe import describe
from semisfl_jax.training.driver import Driver, init_state
from semisfl_jax.training.evaluation import Scores
from semisfl_jax.training.experiment import Experiment, compile_with
from semisfl_jax.training.inputs import RoundInputs
from semisfl_jax.training.interrupt import Request, Stopped
from semisfl_jax.training.load import Result
from semisfl_jax.training.metrics import RunTotals
from semisfl_jax.training.outputs import RunFolder


def train(
    config: ConfigDict,
    folder: str | os.PathLike | None = None,
    on_event: events.Listener | None = None,
    interrupts: Callable[[], AbstractContextManager[Request]] = interrupt.ignore,
) -> Result:
    """Trains one experiment, or resumes it: one trial, or one for each of several seeds.

    Nothing is printed. `training.events.console` has the listener with which the command prints.

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


@memory.explained()
def train_resolved(
    config: ConfigDict,
    folder: str | os.PathLike | None = None,
    on_event: events.Listener | None = None,
    interrupts: Callable[[], AbstractContextManager[Request]] = interrupt.ignore,
) -> Result:
    """As `train`, for a configuration that is checked and resolved."""
    folder = None if folder is None else file_io.expand_home(folder, 'folder')
    hosts.join(config.parallel.coordinator, config.parallel.num_processes, config.parallel.process_id)
    devices = count_devices(config)  # before any other use of JAX, after which a CPU cannot be divided
    listeners = [on_event] if on_event else []
    if folder and (finished := hosts.from_first(lambda: outputs.read_finished(folder, config))):
        _emit(listeners, events.Finished(finished, folder, earlier=True))
        return load.read_result(folder, config, finished)
    if config.compilation_cache:
        machine.cache_programs(data.default_cache_dir() / 'compiled')
    trials = load.build_trials(config, folder)
    of_trials = devices if config.seeds else 1
    _emit(listeners, events.Described(describe(trials, of_trials), folder))
    driver = Driver(trials, config.parallel.trials, of_trials)
    run = Run(driver, config, RunFolder(folder, config, trials) if folder else None, listeners)
    with interrupts() as request:
        return _train(run, request)


class Run(NamedTuple):
    """A run that is about to train."""

    driver: Driver  # of its R trials
    config: ConfigDict  # resolved
    folder: RunFolder | None
    listeners: list[events.Listener]

    @property
    def trials(self) -> Sequence[Experiment]:
        """[R]."""
        return self.driver.trials

    @property
    def places(self) -> list[tuple[str, Path | None]]:
        """[R], what messages about each trial begin with: 'seed 3: ', or '' for a single one; and its folder."""
        names = [f'seed {seed}: ' for seed in self.config.seeds] or ['']
        return list(zip(names, self.folder.homes if self.folder else [None] * len(names), strict=True))

    def emit(self, event: events.Event) -> None:
        """Reports an event."""
        _emit(self.listeners, event)


class LoopState(NamedTuple):
    """Where a run stands between two rounds."""

    round: int  # rounds completed
    state: Any  # of all trials, see `Driver`
    controllers: list[FrequencyState]  # [R], of K_s
    totals: list[RunTotals]  # [R]
    records: list[load.Records]  # [R], so far


class Programs(NamedTuple):
    """What a run compiles before its first round."""

    round: Callable[..., tuple[Any, Any]]  # as `Driver.round`
    evaluate: list[Callable[[Any], Scores]]  # [R], of the state of each trial
    global_loss: list[Callable[[Any], float]]  # likewise, [] if the method has none
    trivial_scores: list[dict[str, dict[str, float]]]  # [R], which depend on no state
    diagnose: Callable[..., dict[str, np.ndarray]] | None
    seconds: dict[str, float]  # {program: duration of its compilation}


def _emit(listeners: Sequence[events.Listener], event: events.Event) -> None:
    """Reports an event in process 0, where an error ends all processes."""
    hosts.on_first(lambda: [listen(event) for listen in listeners])


def _train(run: Run, request: Request) -> Result:
    """Trains up to the last round."""
    config, driver, folder = run.config, run.driver, run.folder
    progress = _start(run)
    stream = driver.inputs(progress.round)
    upcoming = next(stream)
    programs = _compile(run, progress, upcoming)
    if signum := hosts.largest(request.signum):
        raise Stopped(f'stopped before round {progress.round + 1}: nothing to save', signum)
    with ExitStack() as stack:
        if folder:
            writer = folder.writer(progress.round)
            if write := hosts.on_first(lambda: stack.enter_context(writer)):
                run = run._replace(listeners=[write, *run.listeners])
        run.emit(events.Started(progress.round, config.rounds, run.trials[0].headline))
        for index in range(progress.round, config.rounds):
            start, clients = time.monotonic(), upcoming.clients
            state, measured = programs.round(*driver.arguments(progress.state, progress.controllers, upcoming))
            if index + 1 < config.rounds:
                upcoming = next(stream)  # gathered while the device computes
            controllers, of_trials = driver.finish(index, progress.controllers, state, measured, clients)
            seconds = time.monotonic() - start
            progress = _report(run, programs, progress, state, of_trials, clients, seconds)
            progress = progress._replace(controllers=controllers)
            _save(run, progress, request)
        summaries, run_summary = hosts.from_first(lambda: _summarize(run, programs, progress))
        if folder:
            hosts.on_first(lambda: folder.write_summaries(summaries, run_summary))
    run.emit(events.Finished(run_summary, folder.path if folder else None, earlier=False))
    states = driver.split(progress.state)
    return Result(run_summary, lambda: progress.records, lambda: states if config.seeds else states[0])


@machine.without_collecting()
def _start(run: Run) -> LoopState:
    """The state of the last checkpoints, or the initial state."""
    driver, first, folder = run.driver, run.trials[0], run.folder
    template = {'algorithm': first.state_shapes, 'frequency': frequency.init(first.frequency)}
    restored = hosts.from_first(lambda: folder.restore(template)) if folder else None
    if folder is None or restored is None:
        init = init_state(first).lower(first.key).compile()
        with hosts.together():
            memory.check('initial state', init, run.config)
        inits = (init if trial.algorithm is first.algorithm else init_state(trial) for trial in run.trials)
        states = [of_trial(trial.key) for of_trial, trial in zip(inits, run.trials, strict=True)]
        controllers, totals = [frequency.init(first.frequency) for _ in states], [RunTotals() for _ in states]
        return LoopState(0, driver.stack(states), controllers, totals, [[] for _ in states])
    run.emit(events.Resumed(restored.round))
    number, homes = restored.round, folder.homes
    states = [core.replicate(first.mesh, jax.tree.map(jnp.array, tree['algorithm'])) for tree in restored.states]
    return LoopState(
        number,
        driver.stack(states),
        [tree['frequency'] for tree in restored.states],
        list(map(metrics.totals_from_json, restored.notes)),
        hosts.from_first(lambda: [metrics.read(home / 'metrics.jsonl', number) for home in homes]),
    )


@machine.without_collecting()
def _compile(run: Run, progress: LoopState, upcoming: RoundInputs) -> Programs:
    """Compiles the round, whose state is donated, and the evaluation; the diagnostics compile when first due."""
    driver, config, trials, first = run.driver, run.config, run.trials, run.trials[0]
    jit = compile_with(config)
    seconds: dict[str, float] = {}
    with _compiling('round', seconds, run):
        arguments = driver.arguments(progress.state, progress.controllers, upcoming)
        lowered = jit(driver.round, donate_argnums=1).lower(*arguments)
        with ThreadPoolExecutor(1) as beside:  # XLA leaves Python free
            beside.submit(costs.prepare, first.costs)
            round_ = lowered.compile()
    with hosts.together():
        memory.check('compiled round', round_, config)
    with _compiling('evaluation', seconds, run):
        images = evaluation.evaluated(trials)
        evaluate = evaluation.build_evaluate(trials, images)
        trivial_scores = evaluation.trivial_scores(trials, images)
        global_loss = evaluation.build_global_loss(trials)
    if first.costs.enabled:  # a price that cannot be billed says so before anything is written
        index = max(progress.round, config.pre_rounds)
        costs.price_round(first.costs, index, 1, upcoming.clients[0] or inputs.participation(first, index))
    diagnose = diagnostics.build(first, jit) if config.diagnostics_every else None
    return Programs(round_, evaluate, global_loss, trivial_scores, diagnose, seconds)


@contextmanager
def _compiling(program: str, seconds: dict[str, float], run: Run) -> Iterator[None]:
    """Reports a compilation and records its duration in seconds."""
    run.emit(events.Compiling(program))
    start = time.monotonic()
    with machine.count_compilations() as programs:
        yield
    seconds[program] = time.monotonic() - start
    run.emit(events.Compiled(program, seconds[program], cached=programs['cache_hits'] > 0))


def _report(
    run: Run,
    programs: Programs,
    progress: LoopState,
    state: Any,
    measured: list[dict[str, Any]],
    clients: Sequence[costs.Clients | None],
    seconds: float,
) -> LoopState:
    """Checks, evaluates and reports the round after `progress`; `measured` and `clients` are lists [R]."""
    config, trials, number = run.config, run.trials, progress.round + 1
    k_s = [int(controller.k_s) for controller in progress.controllers]
    for place, values, cohort in zip(run.places, measured, clients, strict=True):
        checks.check_losses(*place, number, values, cohort)

    last = number == config.rounds
    diagnose = programs.diagnose
    if diagnose and not last and number % config.diagnostics_every:
        diagnose = None
    scores: list[Scores] = [{} for _ in trials]
    if last or diagnose or number % config.eval_every == 0:
        states = run.driver.split(state)
        if last or number % config.eval_every == 0:
            scores = [evaluate(of_trial) for evaluate, of_trial in zip(programs.evaluate, states, strict=True)]
            for values, loss, of_trial in zip(measured, programs.global_loss, states, strict=False):
                values[evaluation.GLOBAL_LOSS] = np.float32(loss(of_trial))
        if diagnose:
            arrays = [diagnose(trials[r], states[r], number, k_s[r]) for r in range(len(trials))]
            run.emit(events.Diagnosed(number, arrays))

    images = sum(map(inputs.images_per_round, trials, clients, k_s, measured))
    records, totals = [], []
    for trial, steps, values, of_trial, cohort, old in zip(
        trials, k_s, measured, scores, clients, progress.totals, strict=True
    ):
        cost = old.bill
        if trial.costs.enabled:
            cost = costs.add(cost, costs.price_round(trial.costs, progress.round, steps, cohort, values))
        record = metrics.make_record(trial, number, steps, values, of_trial, cost, cohort, seconds, images)
        totals.append(metrics.update_totals(old, cost, record, trial.headline, trial.score_keys))
        records.append(record)
    run.emit(events.RoundDone(records))
    for lines, record in zip(progress.records, records, strict=True):
        lines.append(record)  # in place: copies of all lines in every round would add up
    return progress._replace(round=number, state=state, totals=totals)


def _save(run: Run, progress: LoopState, request: Request) -> None:
    """Saves the state if it is due, or if the run was asked to stop before its last round, which ends it."""
    number, last = progress.round, progress.round == run.config.rounds
    signum = 0 if last else hosts.largest(request.signum)
    if last or signum or number % run.config.checkpoint_every == 0:
        states = run.driver.split(progress.state)
        for place, state in zip(run.places, states, strict=True):
            checks.check_weights(*place, number, state)
        run.emit(events.Snapshot(number, states, progress.controllers, progress.totals))
    if signum:
        advice = 'the same command resumes from there' if run.folder else 'nothing is saved without a folder'
        raise Stopped(f'stopped after round {number}; {advice}', signum)


def _summarize(run: Run, programs: Programs, progress: LoopState) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The summary of every trial and that of the run, which is the same for a single trial."""
    summaries = [
        file_io.seal(metrics.summarize_trial(trial, totals, trivial_scores, programs.seconds, len(run.trials)))
        for trial, totals, trivial_scores in zip(run.trials, progress.totals, programs.trivial_scores, strict=True)
    ]
    if not run.config.seeds:
        return summaries, summaries[0]
    return summaries, file_io.seal(metrics.summarize_trials(run.config, run.driver.map, summaries))
