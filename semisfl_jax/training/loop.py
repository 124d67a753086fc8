"""The training loop, from a configuration to a trained model and, on request, a folder of outputs.

Configuration, data and programs are checked before the folder is modified. After that a run may be killed at any time:
when restarted, it resumes from its last checkpoint and writes the same outputs as an uninterrupted run.

Several processes may compute one run (`hosts`): all execute this loop in lockstep, and process 0 writes and reports.
"""

import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, overload

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from semisfl_jax import config as config_lib
from semisfl_jax import core, costs, data, tasks
from semisfl_jax.base import file_io, hosts, machine
from semisfl_jax.base.errors import UserError, count, warn
from semisfl_jax.config import ignored_keys
from semisfl_jax.config.resolve import count_devices
from semisfl_jax.core import frequency
from semisfl_jax.training import callbacks as callbacks_lib
from semisfl_jax.training import (
    checks,
    diagnostics,
    evaluation,
    events,
    inputs,
    interrupt,
    memory,
    metrics,
    outputs,
    trackers,
)
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training import grid as grid_lib
from semisfl_jax.training.checkpoint import installed_versions
from semisfl_jax.training.describe import describe
from semisfl_jax.training.driver import Driver, RoundInputs, init_state
from semisfl_jax.training.experiment import Experiment, compile_with
from semisfl_jax.training.grid import Cell, Results
from semisfl_jax.training.load import Result

Folder: TypeAlias = str | os.PathLike | None
Interrupts: TypeAlias = Callable[[], AbstractContextManager[interrupt.Request]]
Callbacks: TypeAlias = Sequence[events.Callback]


# fmt: off
@overload
def train(config: ConfigDict, folder: Folder = ..., callbacks: Callbacks = ..., interrupts: Interrupts = ...,
          dataset: data.Dataset | None = ..., bar: bool = ..., grid: None = ...) -> Result: ...
@overload
def train(config: ConfigDict, folder: Folder = ..., callbacks: Callbacks = ..., interrupts: Interrupts = ...,
          dataset: data.Dataset | None = ..., bar: bool = ..., *, grid: Mapping[str, Iterable[Any]]) -> Results: ...
# fmt: on


def train(
    config: ConfigDict,
    folder: Folder = None,
    callbacks: Callbacks = (),
    interrupts: Interrupts = interrupt.ignore,
    dataset: data.Dataset | None = None,
    bar: bool = True,
    grid: Mapping[str, Iterable[Any]] | None = None,
) -> Result | Results:
    """Trains one experiment, or resumes it: one trial, or one for each of several seeds.

    It logs warnings, and prints nothing but a progress bar; `callbacks.console` prints what the command does.

    Args:
      config: a configuration, as `get_config` returns it.
      folder: the output folder, from which an interrupted run resumes. None writes no files and saves no checkpoints.
      callbacks: called in process 0 with everything that the run reports, in turn, see `events`; those of the package
        are in `callbacks`. If they stop the run early, the same call without them goes on.
      interrupts: a block around the rounds that may ask to stop after the current one, such as `interrupt.listen`,
        with which Ctrl-C, or the stop button of a notebook, saves the state first.
      dataset: data in memory, from `data.from_arrays`, in place of those that `config.data` names. `data.name` and, if
        they have clients, `federation.partition` and `num_clients` follow. Resuming takes the same data again.
      bar: whether to show a progress bar, in a terminal or notebook.
      grid: values by dotted key, {'lr': (0.01, 0.02), 'threshold': (0.9, 0.95)}, for a run of every choice of them, in
        turn. Each has a folder of its own in `folder`. The same callbacks serve all, and each run begins with a new
        `Described`. Several values of `seed` are the seeds of each run.

    Returns:
      The result; if an earlier call finished the run, it is read from `folder`. With a grid the results by their
      values, `results[0.01, 0.9]`; a run that fails is named by a warning and in `results.failed`.

    Raises:
      UserError: an invalid configuration or argument, missing data, an unusable folder, a folder with more rounds
        than `config.rounds`.
      Diverged: a loss or a weight became NaN or infinite.
      Stopped: `interrupts` asked for it; the state is saved if at least one round was done and there is a folder.
    """
    if callable(callbacks):
        raise UserError('callbacks is a function; give a list: callbacks=[FUNCTION]')
    shown = [callbacks_lib.bar()] if bar else []

    def make(values: dict[str, Any]) -> tuple[ConfigDict, list[str]]:
        full = experiment_lib.with_data(config, dataset)
        if values and isinstance(full, ConfigDict):
            full = experiment_lib.with_data(config_lib.with_values(full, values), dataset)
        config_lib.check(full)
        return config_lib.resolve(full), list(ignored_keys.warnings(full, [*ignored_keys.changed(config), *values]))

    def train_one(cell: Cell, home: Folder) -> Result:
        return train_resolved(cell.config, home, [*shown, *callbacks], interrupts, cell.told, dataset)

    if grid is None:
        return train_one(Cell({}, *make({})), folder)
    return grid_lib.run(grid_lib.cells(grid, make), folder, train_one)


@memory.explained()
def train_resolved(
    config: ConfigDict,
    folder: Folder = None,
    callbacks: Callbacks = (),
    interrupts: Interrupts = interrupt.ignore,
    told: Sequence[str] = (),
    dataset: data.Dataset | None = None,
) -> Result:
    """Trains as `train` does, from a configuration that is checked and resolved.

    Args:
      config: configuration, resolved.
      folder: as in `train`.
      callbacks: as in `train`.
      interrupts: as in `train`.
      told: warnings, given once all is built.
      dataset: as in `train`.

    Returns:
      The result, as `train`.
    """
    folder = None if folder is None else file_io.expand_home(folder, 'the workdir')
    hosts.join(config.parallel.coordinator, config.parallel.num_processes, config.parallel.process_id)
    devices = count_devices(config)  # first: once JAX is in use, a CPU cannot be divided
    if folder and (finished := hosts.from_first(lambda: outputs.read_finished(folder, config, dataset))):
        hosts.on_first(lambda: [call(events.Finished(finished, folder, earlier=True)) for call in callbacks])
        return Result(finished, homes=outputs.trial_folders(folder, config))
    if config.compilation_cache:
        machine.cache_programs(data.default_cache_dir() / 'compiled')
    trials = _build_trials(config, folder, dataset)
    driver = Driver(trials, config.parallel.trials, devices)
    outlet = outputs.RunFolder(folder, config, trials) if folder else None
    if outlet:
        configs = {trial.config.seed: trial.config for trial in trials}
        tracked = [trackers.tracker(name, outlet.path, outlet.by_seed, configs) for name in config.trackers]
        callbacks = [*tracked, *callbacks]
    run = Run(driver, trials, config, outlet, callbacks, {})
    most = min(len(trials), jax.device_count())
    if config.seeds and not config.parallel.devices and devices < most:
        why = f'their number must divide that of the seeds; use a multiple of {most} seeds'
        told = (*told, f'{len(trials)} seeds share {devices} of {count(jax.device_count(), "device")}: {why}')
    try:
        run.emit(events.Described(describe(trials, devices), folder, config.rounds, trials[0].headline))
        hosts.on_first(lambda: list(map(warn, (*told, *inputs.warnings(trials)))))
        with interrupts() as request:
            return _train(run, request)
    finally:
        if hosts.first():  # alone: the other processes may have failed
            for call in callbacks:
                call(events.Ended())


@machine.gc_paused()
def _build_trials(config: ConfigDict, folder: Path | None, dataset: data.Dataset | None) -> list[Experiment]:
    """Builds the trials of `config` (resolved), and checks that their folders are usable; all processes call it."""
    counts = [config.rounds, config.checkpoint_every, config.diagnostics_every]  # the hash leaves these out
    hosts.check_same('configurations', [config_lib.identity_hash(config), *counts])
    same = machine.settings() | installed_versions()
    hosts.check_same("JAX's settings or the versions of packages", [f'{name} {value}' for name, value in same.items()])
    configs, homes = config_lib.trials(config), outputs.trial_folders(folder, config) if folder else []
    hosts.on_first(lambda: list(map(outputs.check_writable, homes)))
    hosts.on_first(lambda: list(map(outputs.check_folder, homes, configs)))
    goes_on = bool(homes) and hosts.from_first(lambda: all(map(outputs.last_round, homes)))
    with hosts.together():
        trials = experiment_lib.build_trials(configs, goes_on, dataset)
    partitions = [trial.partition for trial in trials]
    hosts.on_first(lambda: list(map(outputs.check_partition, homes, partitions)))
    hosts.on_first(lambda: outputs.check_inputs(homes, config, lambda _: partitions[0].checksum))
    hosts.check_same('the data or their split', [partition.content_hash for partition in partitions])
    if not goes_on:
        hosts.check_same('the arrays of model.weights', [experiment_lib.weights_hash(config.model.weights)])
    return trials


class Run(NamedTuple):
    """A run that is about to train."""

    driver: Driver
    trials: Sequence[Experiment]  # [R]
    config: ConfigDict  # resolved
    folder: outputs.RunFolder | None
    callbacks: Sequence[events.Callback]
    wishes: dict[int, str]  # {seed: why it should stop}, as callbacks have answered so far; in process 0

    @property
    def seeds(self) -> list[int]:
        """Seeds of the trials, [R]."""
        return [trial.config.seed for trial in self.trials]

    @property
    def places(self) -> list[tuple[str, Path | None]]:
        """Each trial's prefix of messages, 'seed 3: ' or '' for a single one, and its folder, [R]."""
        names = [f'seed {seed}: ' for seed in self.config.seeds] or ['']
        return list(zip(names, self.folder.homes if self.folder else [None] * len(names), strict=True))

    def emit(self, event: events.Event) -> None:
        """Reports an event in process 0, where an error ends all processes, and notes who should stop."""

        def call_all() -> None:
            for call in self.callbacks:
                self.wishes.update(events.wishes(event, call(event)))

        hosts.on_first(call_all)


class Parked(NamedTuple):
    """A trial whose rounds are computed, as it is part of the program, but not counted."""

    round: int  # rounds completed
    state: Any
    controller: frequency.FrequencyState
    stopped: bool  # else it has resumed from a later round than others, and counts again from there


class LoopState(NamedTuple):
    """The progress of a run between two rounds."""

    round: int  # rounds completed
    state: Any  # of all trials, see `Driver`
    controllers: list[frequency.FrequencyState]  # [R], of K_s
    records: list[metrics.Records]  # [R], so far
    checksums: list[str]  # [R], of the records, by `metrics.chain`
    parked: Mapping[int, Parked] = MappingProxyType({})  # by index of the trial

    @property
    def counted(self) -> list[int]:
        """Indices of the trials that are not parked."""
        return [r for r in range(len(self.records)) if r not in self.parked]

    def tree(self, r: int, states: Sequence[Any]) -> dict[str, Any]:
        """Returns what a checkpoint of a trial holds, given the states [R]."""
        return {'algorithm': states[r], 'frequency': self.controllers[r]}

    def goes_on(self, rounds: int) -> bool:
        """Returns whether a trial needs another of `rounds` in total."""
        waiting = any(not parked.stopped and parked.round < rounds for parked in self.parked.values())
        return self.round < rounds and (bool(self.counted) or waiting)


class Programs(NamedTuple):
    """The programs that a run compiles before its first round."""

    round: Callable[..., tuple[Any, Any]]  # as `Driver.round`
    evaluate: list[Callable[[Any], evaluation.Scores]]  # [R], of the state of each trial
    global_loss: list[Callable[[Any], float]]  # likewise, [] if the method has none
    trivial_scores: list[dict[str, dict[str, float]]]  # [R], the same for every state
    diagnose: Callable[..., dict[str, np.ndarray]] | None
    seconds: dict[str, float]  # {program: duration of its compilation}


def _train(run: Run, request: interrupt.Request) -> Result:
    """Trains up to the last round, or until all trials have stopped early."""
    config, driver, folder = run.config, run.driver, run.folder
    progress, initial = _start(run)
    if progress.parked and not progress.goes_on(config.rounds):
        assert folder  # trials are parked, so they have resumed
        completed = list(map(len, progress.records))
        if summary := hosts.from_first(lambda: outputs.read_early(folder.path, completed)):
            run.emit(events.Finished(summary, folder.path, earlier=True))
            return Result(summary, homes=folder.homes)
    stream = driver.inputs(progress.round)
    upcoming = next(stream)
    programs = _compile(run, progress, upcoming, initial)
    progress = progress._replace(state=initial())
    if signum := hosts.largest([request.signum])[0]:
        raise interrupt.Stopped(f'stopped before round {progress.round + 1}: nothing to save', signum)
    with ExitStack() as stack:
        if folder:
            writer = folder.writer(list(map(len, progress.records)))
            if write := hosts.on_first(lambda: stack.enter_context(writer)):
                run = run._replace(callbacks=[write, *run.callbacks])
        run.emit(events.Started(progress.round))
        while progress.goes_on(config.rounds):
            index, clients, start = progress.round, upcoming.clients, time.monotonic()
            state, measured = programs.round(*driver.arguments(progress.state, progress.controllers, upcoming))
            if index + 1 < config.rounds:
                upcoming = next(stream)  # gathered while the device computes
            controllers, values = driver.finish(index, progress.controllers, state, measured, clients)
            seconds = time.monotonic() - start
            progress = _report(run, programs, progress, state, controllers, values, clients, seconds)
            progress = _save(run, programs, progress, request)
        summaries, run_summary = hosts.from_first(lambda: _summarize(run, programs, progress))
        if folder:
            hosts.on_first(lambda: folder.write_summaries(summaries, run_summary))
    hosts.on_first(lambda: list(map(warn, inputs.warnings_after(config.pre_rounds, progress.records))))
    run.emit(events.Finished(run_summary, folder.path if folder else None, earlier=False))
    states = dict(enumerate(driver.split(progress.state))) | {r: each.state for r, each in progress.parked.items()}
    return Result(run_summary, progress.records, list(states.values()))


@machine.gc_paused()
def _start(run: Run) -> tuple[LoopState, Callable[[], Any]]:
    """Returns the progress of the last checkpoints, or of a run that begins, and a function that returns its state.

    The state of a run that begins is computed by a program that compiles beside the round; until then, its progress has
    shapes in its place.
    """
    driver, first, folder = run.driver, run.trials[0], run.folder
    controller = frequency.init(first.frequency)
    template = {'algorithm': first.state_shapes, 'frequency': controller}
    resumed = hosts.from_first(lambda: folder.restore(template)) if folder else None
    if resumed is None:
        beside = ThreadPoolExecutor(1)
        compiling = beside.submit(init_state(first).lower(first.key).compile)
        beside.shutdown(wait=False)

        @functools.cache
        def initial() -> Any:
            init = compiling.result()
            with hosts.together():
                memory.check('initial state', init, run.config)
            inits = [init if trial.algorithm is first.algorithm else init_state(trial) for trial in run.trials]
            return driver.stack([begin(trial.key) for begin, trial in zip(inits, run.trials, strict=True)])

        count = len(run.trials)
        begins = LoopState(0, driver.state_shapes, [controller] * count, [[] for _ in run.trials], [''] * count)
        return begins, initial
    restored, records = resumed
    numbers = [each.round for each in restored]
    run.emit(events.Resumed(min(numbers), dict(zip(run.seeds, records, strict=True))))
    _, wishes = _requests(run, records)
    stops = [wish and number < run.config.rounds for wish, number in zip(wishes, numbers, strict=True)]
    start = min((number for number, stop in zip(numbers, stops, strict=True) if not stop), default=max(numbers))
    states = [core.clients.replicate(first.mesh, jax.tree.map(jnp.array, each.state['algorithm'])) for each in restored]
    controllers = [each.state['frequency'] for each in restored]
    parked = {
        r: Parked(number, states[r], controllers[r], stops[r])
        for r, number in enumerate(numbers)
        if stops[r] or number > start
    }
    some = numbers.index(start)  # what is computed in the place of those that are parked
    states = [states[some if r in parked else r] for r in range(len(states))]
    controllers = [controllers[some if r in parked else r] for r in range(len(states))]
    checksums = list(map(metrics.chained, records))
    state = driver.stack(states)
    return LoopState(start, state, controllers, records, checksums, parked), lambda: state


def _requests(run: Run, records: Sequence[metrics.Records], signum: int = 0) -> tuple[int, list[bool]]:
    """Agrees with the other processes: a signal that one has received, and which trials stop, [R].

    These are those whose last line in `records` has an evaluation, and that callbacks wish to stop.
    """
    key = run.trials[0].headline.key
    wishes = [seed in run.wishes and key in lines[-1] for seed, lines in zip(run.seeds, records, strict=True)]
    signum, *stops = hosts.largest([signum, *wishes])
    return signum, list(map(bool, stops))


@machine.gc_paused()
def _compile(run: Run, progress: LoopState, upcoming: RoundInputs, initial: Callable[[], Any]) -> Programs:
    """Compiles the round, whose state is donated, and the evaluation; the diagnostics compile when first due."""
    driver, config, trials, first = run.driver, run.config, run.trials, run.trials[0]
    jit = compile_with(config)
    seconds: dict[str, float] = {}
    with _compiling('round', seconds, run):
        arguments = driver.arguments(progress.state, progress.controllers, upcoming)
        lowered = jit(driver.round, donate_argnums=1).lower(*arguments)
        with ThreadPoolExecutor(1) as beside:  # XLA releases the GIL
            if first.costs.enabled:  # measures the pieces: the first round would take a second longer
                beside.submit(lambda: first.costs.task_pieces)
            round_ = lowered.compile()
    initial()  # first: if the state alone is too large, other keys help
    with hosts.together():
        memory.check('compiled round', round_, config)
    with _compiling('evaluation', seconds, run):
        images = evaluation.evaluated(trials)
        evaluate = evaluation.build_evaluate(trials, images)
        trivial_scores = evaluation.trivial_scores(trials, images)
        global_loss = evaluation.build_global_loss(trials)
    if first.costs.enabled:  # a price that fails must do so before anything is written
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
    controllers: list[frequency.FrequencyState],
    measured: list[dict[str, Any]],
    clients: Sequence[costs.Clients | None],
    seconds: float,
) -> LoopState:
    """Checks, evaluates and reports the round after `progress`; `controllers`, `measured` and `clients` are [R]."""
    config, trials, number, counted = run.config, run.trials, progress.round + 1, progress.counted
    k_s = [int(controller.k_s) for controller in progress.controllers]
    for r in counted:
        checks.check_losses(*run.places[r], number, measured[r], clients[r])

    states = functools.cache(lambda: run.driver.split(state))
    last = number == config.rounds
    diagnose = programs.diagnose if last or number % (config.diagnostics_every or 1) == 0 else None
    scores: list[evaluation.Scores] = [{} for _ in trials]
    if last or number % config.eval_every == 0:
        for r in counted:
            scores[r] = programs.evaluate[r](states()[r])
            if programs.global_loss:
                measured[r][tasks.GLOBAL_LOSS] = np.float32(programs.global_loss[r](states()[r]))
    if diagnose:
        arrays = {run.seeds[r]: diagnose(trials[r], states()[r], number, k_s[r]) for r in counted}
        run.emit(events.Diagnosed(number, arrays))

    images = sum(map(inputs.images_per_round, trials, clients, k_s, measured))
    records, checksums = progress.records, [*progress.checksums]
    for r in counted:
        values = measured[r], scores[r], clients[r], records[r]
        record = metrics.make_record(trials[r], number, k_s[r], *values, seconds, images)
        records[r].append(record)  # in place: copies of all lines in every round would add up
        checksums[r] = metrics.chain(checksums[r], record)
    progress = progress._replace(round=number, state=state, controllers=controllers, checksums=checksums)

    def save(seed: int, name: str) -> None:
        r = run.seeds.index(seed)
        if run.folder:
            run.folder.save(name, number, {r: progress.tree(r, states())}, checksums, 1)

    lines = {run.seeds[r]: records[r] for r in counted}
    run.emit(events.RoundDone(number, lines, lambda seed: states()[run.seeds.index(seed)], save))
    return progress


def _save(run: Run, programs: Programs, progress: LoopState, request: interrupt.Request) -> LoopState:
    """Saves the state if it is due or something is to stop, and parks the trials that stop early.

    Raises:
      Stopped: on a request to stop before the last round.
    """
    config, folder, number = run.config, run.folder, progress.round
    last, counted = number == config.rounds, progress.counted
    signum, wishes = (0, []) if last else _requests(run, progress.records, request.signum)
    stopping = [r for r in counted if wishes and wishes[r]]
    if last or signum or stopping or number % config.checkpoint_every == 0:
        states = run.driver.split(progress.state)
        for r in counted:
            checks.check_weights(*run.places[r], number, states[r])
        if folder:
            trees = {r: progress.tree(r, states) for r in counted}
            hosts.on_first(
                lambda: folder.save('checkpoints', number, trees, progress.checksums, config.checkpoints_kept)
            )
    if signum:
        advice = 'the same command resumes from there' if folder else 'nothing is saved without a folder'
        raise interrupt.Stopped(f'stopped after round {number}; {advice}', signum)
    if stopping:
        new = {r: Parked(number, states[r], progress.controllers[r], True) for r in stopping}
        progress = progress._replace(parked={**progress.parked, **new})
        if folder and progress.goes_on(config.rounds):  # else all summaries are about to be written
            folder.write_summaries({r: _summarize_trial(run, programs, progress, r) for r in stopping})
    return _take_back(run, progress)


def _take_back(run: Run, progress: LoopState) -> LoopState:
    """Counts trials again that have resumed from the round that the others have reached now."""
    back = {r: each for r, each in progress.parked.items() if not each.stopped and each.round == progress.round}
    if not back:
        return progress
    states, controllers = run.driver.split(progress.state), [*progress.controllers]
    for r, each in back.items():
        states[r], controllers[r] = each.state, each.controller
    parked = {r: each for r, each in progress.parked.items() if r not in back}
    return progress._replace(state=run.driver.stack(states), controllers=controllers, parked=parked)


def _summarize_trial(run: Run, programs: Programs, progress: LoopState, r: int) -> dict[str, Any]:
    """Returns the summary of a trial, in process 0."""
    values = progress.records[r], progress.checksums[r], programs.trivial_scores[r], programs.seconds
    stopped = run.wishes[run.seeds[r]] if r in progress.parked and progress.parked[r].stopped else ''
    return file_io.seal(metrics.summarize_trial(run.trials[r], *values, len(run.trials), stopped))


def _summarize(run: Run, programs: Programs, progress: LoopState) -> tuple[dict[int, dict[str, Any]], dict[str, Any]]:
    """Returns the summary of every trial and that of the run; with a single trial, they are the same."""
    summaries = {r: _summarize_trial(run, programs, progress, r) for r in range(len(run.trials))}
    if not run.config.seeds:
        return summaries, summaries[0]
    return summaries, file_io.seal(metrics.summarize_trials(run.config, run.driver.map, list(summaries.values())))
