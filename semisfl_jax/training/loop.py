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
from functools import partial
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
from semisfl_jax.base.errors import Diverged, UserError, count, warn
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
from semisfl_jax.training import kept as kept_lib
from semisfl_jax.training.checkpoint import installed_versions
from semisfl_jax.training.describe import describe
from semisfl_jax.training.driver import Driver, RoundInputs, init_state
from semisfl_jax.training.experiment import Experiment, compile_with
from semisfl_jax.training.grid import Planned, Results
from semisfl_jax.training.kept import NOTHING, Kept
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
      grid: values by dotted key, {'lr': (0.01, 0.02), 'threshold': (0.9, 0.95)}, for a run of every choice of them.
        Each has a folder of its own in `folder`. Those that differ in numbers of a round alone are one program. With
        callbacks, which serve all, they are trained in turn, and each begins with a new `Described`. Several values of
        `seed` are the seeds of each run.

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

    if grid is None:
        resolved, told = make({})
        return train_resolved(resolved, folder, [*shown, *callbacks], interrupts, told, dataset)

    return grid_lib.run(
        grid_lib.cells(grid, make),
        folder,
        callbacks,
        shown,
        partial(train_together, interrupts=interrupts, dataset=dataset),
    )


def train_resolved(
    config: ConfigDict,
    folder: Folder = None,
    callbacks: Callbacks = (),
    interrupts: Interrupts = interrupt.ignore,
    told: Sequence[str] = (),
    dataset: data.Dataset | None = None,
    keeps: bool = False,
) -> Result:
    """Trains as `train` does, from a configuration that is checked and resolved.

    `told` are warnings about it, `keeps` as in `train_together`.
    """
    home = None if folder is None else file_io.expand_home(folder, 'the workdir')
    (result,) = train_together([Planned(config, told, home, callbacks)], interrupts, dataset, keeps)
    if isinstance(result, UserError):
        raise result
    return result


@memory.explained()
def train_together(
    planned: Sequence[Planned],
    interrupts: Interrupts = interrupt.ignore,
    dataset: data.Dataset | None = None,
    keeps: bool = False,
) -> list[Result | UserError]:
    """Trains runs as one program, which they have in common by `grid.program`.

    Args:
      planned: the runs.
      interrupts: as in `train`.
      dataset: as in `train`.
      keeps: whether programs are kept for the next start of the same command (`kept`).

    Returns:
      The result of each, as `train`; the error of one that has diverged.

    Raises:
      UserError: as `train`, for all runs; and `Stopped`.
    """
    config, code = planned[0].config, kept_lib.code() if keeps else None
    hosts.join(config.parallel.coordinator, config.parallel.num_processes, config.parallel.process_id)
    if len(planned) > 1:  # devices divide the runs, as they do seeds
        config = config.copy_and_resolve_references().unlock()
        config.update(seeds=tuple(range(sum(max(1, len(run.config.seeds)) for run in planned))))
    devices = count_devices(config)  # first: once JAX is in use, a CPU cannot be divided
    results: dict[int, Result | UserError] = {}
    for index, run in enumerate(planned):
        if (folder := run.folder) is None:
            continue
        if finished := hosts.from_first(partial(outputs.read_finished, folder, run.config, dataset)):
            hosts.on_first(partial(_call, run.callbacks, events.Finished(finished, folder, earlier=True)))
            results[index] = Result(finished, homes=outputs.trial_folders(folder, run.config))
    if len(results) == len(planned):
        return list(results.values())
    if results:  # the others are a program of their own
        rest = [run for index, run in enumerate(planned) if index not in results]
        others = iter(train_together(rest, interrupts, dataset, keeps))
        return [results[index] if index in results else next(others) for index in range(len(planned))]
    cache = data.default_cache_dir() / 'compiled'
    find = partial(kept_lib.find, cache, code) if config.compilation_cache and machine.cache_programs(cache) else None
    trials = _build_trials(planned, dataset)
    driver = Driver(trials, config.parallel.trials, devices, grid_lib.varied([run.config for run in planned]))
    runs, told, first = [], list[str](), 0
    for run in planned:
        own = trials[first : first + max(1, len(run.config.seeds))]
        outlet = outputs.RunFolder(run.folder, run.config, own) if run.folder else None
        callbacks = run.callbacks
        if outlet:
            configs = {trial.config.seed: trial.config for trial in own}
            tracked = [trackers.tracker(name, outlet.path, outlet.by_seed, configs) for name in config.trackers]
            callbacks = [*tracked, *callbacks]
        title = f'{run.title}: ' if run.title else ''
        runs.append(Run(own, first, run.config, outlet, callbacks, {}, title, []))
        told += [f'{title}{line}' for line in (*run.told, *inputs.warnings(own))]
        first += len(own)
    most = min(len(trials), jax.device_count())
    if config.seeds and not config.parallel.devices and devices < most:
        why = f'their number must divide that of the seeds; use a multiple of {most} seeds'
        told = [f'{len(trials)} seeds share {devices} of {count(jax.device_count(), "device")}: {why}', *told]
    try:
        for each in runs:
            place = each.folder.path if each.folder else None
            each.emit(events.Described(describe(each.trials, devices), place, config.rounds, trials[0].headline))
        hosts.on_first(lambda: list(map(warn, dict.fromkeys(told))))
        with interrupts() as request:
            return _train(Group(driver, runs, config), request, find)
    finally:
        if hosts.first():  # alone: the other processes may have failed
            for each in runs:
                _call(each.callbacks, events.Ended())


def _call(callbacks: Callbacks, event: events.Event) -> None:
    for call in callbacks:
        call(event)


@machine.gc_paused()
def _build_trials(planned: Sequence[Planned], dataset: data.Dataset | None) -> list[Experiment]:
    """Builds the trials of runs, whose folders it checks; all processes call it."""
    config, homes, trials = planned[0].config, list[Path](), list[ConfigDict]()
    counts = [config.rounds, config.checkpoint_every, config.diagnostics_every]  # the hash leaves these out
    hosts.check_same('configurations', [config_lib.identity_hash(config), *counts])
    same = machine.settings() | installed_versions()
    hosts.check_same("JAX's settings or the versions of packages", [f'{name} {value}' for name, value in same.items()])
    for run in planned:
        trials += config_lib.trials(run.config)
        homes += outputs.trial_folders(run.folder, run.config) if run.folder else []
    hosts.on_first(lambda: list(map(outputs.check_writable, homes)))
    hosts.on_first(lambda: list(map(outputs.check_folder, homes, trials)))
    goes_on = bool(homes) and hosts.from_first(lambda: all(map(outputs.last_round, homes)))
    with hosts.together():
        built = experiment_lib.build_trials(trials, goes_on, dataset)
    partitions = [trial.partition for trial in built]
    hosts.on_first(lambda: list(map(outputs.check_partition, homes, partitions)))
    hosts.on_first(lambda: outputs.check_inputs(homes, config, lambda _: partitions[0].checksum))
    hosts.check_same('the data or their split', [partition.content_hash for partition in partitions])
    if not goes_on:
        hosts.check_same('the arrays of model.weights', [experiment_lib.weights_hash(config.model.weights)])
    return built


class Run(NamedTuple):
    """A run that is about to train."""

    trials: Sequence[Experiment]
    first: int  # index of its first trial in the program
    config: ConfigDict  # resolved
    folder: outputs.RunFolder | None
    callbacks: Sequence[events.Callback]
    wishes: dict[int, str]  # {seed: why it should stop}, as callbacks have answered so far; in process 0
    title: str  # prefix of warnings
    error: list[UserError]  # the one with which it has ended, if it has diverged beside others

    @property
    def rows(self) -> range:
        """Indices of its trials in the program."""
        return range(self.first, self.first + len(self.trials))

    @property
    def seeds(self) -> list[int]:
        """Seeds of the trials."""
        return [trial.config.seed for trial in self.trials]

    @property
    def by_row(self) -> dict[int, int]:
        """Seeds by the indices of the trials in the program."""
        return dict(zip(self.rows, self.seeds, strict=True))

    def place(self, row: int) -> tuple[str, Path | None]:
        """Returns the prefix of messages of a trial, 'seed 3: ' or '' for a single one, and its folder."""
        name = f'seed {self.by_row[row]}: ' if self.config.seeds else ''
        return name, self.folder.homes[row - self.first] if self.folder else None

    def emit(self, event: events.Event) -> None:
        """Reports an event in process 0, where an error ends all processes, and notes who should stop."""

        def call_all() -> None:
            for call in self.callbacks:
                self.wishes.update(events.wishes(event, call(event)))

        hosts.on_first(call_all)


class Group(NamedTuple):
    """Runs that are one program: nearly always a single one."""

    driver: Driver
    runs: Sequence[Run]
    config: ConfigDict  # of the program

    @property
    def trials(self) -> Sequence[Experiment]:
        """Those of all runs, [R]."""
        return self.driver.trials

    def emit(self, event: events.Event) -> None:
        """Reports an event of the program in all runs."""
        for run in self.runs:
            run.emit(event)


class Parked(NamedTuple):
    """A trial whose rounds are computed, as it is part of the program, but not counted."""

    round: int  # rounds completed
    state: Any
    controller: frequency.FrequencyState
    stopped: bool  # else it has resumed from a later round than others, and counts again from there


class LoopState(NamedTuple):
    """The progress of a program between two rounds."""

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
    """What is compiled before the first round."""

    round: Callable[..., tuple[Any, Any]]  # as `Driver.round`
    evaluate: list[Callable[[Any], evaluation.Scores]]  # [R], of the state of each trial
    global_loss: list[Callable[[Any], float]]  # likewise, [] if the method has none
    trivial_scores: list[dict[str, dict[str, float]]]  # [R], the same for every state
    diagnose: Callable[..., dict[str, np.ndarray]] | None
    seconds: dict[str, float]  # {program: duration of its compilation}


def _train(
    group: Group, request: interrupt.Request, find: Callable[[Driver, Any], Kept] | None
) -> list[Result | UserError]:
    """Trains up to the last round, or until all trials have stopped early; `find` finds what is kept."""
    config, driver, runs = group.config, group.driver, group.runs
    progress, begin = _start(group)
    if len(runs) == 1 and progress.parked and not progress.goes_on(config.rounds):
        (run,) = runs
        assert run.folder  # trials are parked, so they have resumed
        completed = list(map(len, progress.records))
        folder = run.folder
        if summary := hosts.from_first(lambda: outputs.read_early(folder.path, completed)):
            run.emit(events.Finished(summary, folder.path, earlier=True))
            return [Result(summary, homes=folder.homes)]
    stream = driver.inputs(progress.round)
    upcoming = next(stream)
    arguments = driver.arguments(progress.state, progress.controllers, upcoming)
    kept = find(driver, arguments) if find else NOTHING
    initial = begin(kept)
    programs = _compile(group, progress, upcoming, arguments, initial, kept)
    progress = progress._replace(state=initial())
    kept.write()
    if signum := hosts.largest([request.signum])[0]:
        raise interrupt.Stopped(f'stopped before round {progress.round + 1}: nothing to save', signum)
    with ExitStack() as stack:
        for index, run in enumerate(runs):
            if run.folder:
                writer = run.folder.writer([len(progress.records[r]) for r in run.rows])
                if write := hosts.on_first(partial(stack.enter_context, writer)):
                    runs = [*runs[:index], run._replace(callbacks=[write, *run.callbacks]), *runs[index + 1 :]]
        group = group._replace(runs=runs)
        group.emit(events.Started(progress.round))
        while progress.goes_on(config.rounds):
            index, clients, start = progress.round, upcoming.clients, time.monotonic()
            state, measured = programs.round(*driver.arguments(progress.state, progress.controllers, upcoming))
            if index + 1 < config.rounds:
                upcoming = next(stream)  # gathered while the device computes
            controllers, values = driver.finish(index, progress.controllers, state, measured, clients)
            seconds = time.monotonic() - start
            progress = _report(group, programs, progress, state, controllers, values, clients, seconds)
            progress = _save(group, programs, progress, request)
        summaries = [hosts.from_first(partial(_summarize, group, run, programs, progress)) for run in runs]
        for run, (of_trials, summary) in zip(runs, summaries, strict=True):
            if run.folder and not run.error:
                hosts.on_first(partial(run.folder.write_summaries, of_trials, summary))
    hosts.on_first(lambda: list(map(warn, inputs.warnings_after(config.pre_rounds, progress.records))))
    states = dict(enumerate(driver.split(progress.state))) | {r: each.state for r, each in progress.parked.items()}
    results = list[Result | UserError]()
    for run, (_, summary) in zip(runs, summaries, strict=True):
        if run.error:
            results.append(run.error[0])
            continue
        run.emit(events.Finished(summary, run.folder.path if run.folder else None, earlier=False))
        records = [progress.records[r] for r in run.rows]
        results.append(Result(summary, records, [states[r] for r in run.rows]))
    return results


@machine.gc_paused()
def _start(group: Group) -> tuple[LoopState, Callable[[Kept], Callable[[], Any]]]:
    """Returns the progress of the last checkpoints, or of runs that begin, and what begins to compute their state.

    The state of runs that begin is computed by a program that compiles beside the round; until then, progress has
    shapes in its place.
    """
    driver, trials, first = group.driver, group.trials, group.trials[0]
    controller = frequency.init(first.frequency)
    template = {'algorithm': first.state_shapes, 'frequency': controller}
    resumed = [hosts.from_first(partial(run.folder.restore, template)) if run.folder else None for run in group.runs]
    if not any(resumed):
        controllers = [frequency.init(trial.frequency) for trial in trials]
        progress = LoopState(0, driver.state_shapes, controllers, [[] for _ in trials], [''] * len(trials))
        return progress, partial(_begin, group)
    rows = list[Parked]()
    records: list[metrics.Records] = []
    for run, found in zip(group.runs, resumed, strict=True):
        if not found:  # it begins beside others that go on
            init = init_state(first)
            rows += [Parked(0, init(trial.key), frequency.init(trial.frequency), False) for trial in run.trials]
            records += [[] for _ in run.trials]
            continue
        restored, lines = found
        run.emit(events.Resumed(min(each.round for each in restored), dict(zip(run.seeds, lines, strict=True))))
        _, wishes = _requests(run, dict(zip(run.rows, lines, strict=True)))
        for each, wish in zip(restored, wishes, strict=True):
            state = core.clients.replicate(first.mesh, jax.tree.map(jnp.array, each.state['algorithm']))
            stops = wish and each.round < group.config.rounds
            rows.append(Parked(each.round, state, each.state['frequency'], stops))
        records += lines
    start = min((row.round for row in rows if not row.stopped), default=max(row.round for row in rows))
    parked = {r: row for r, row in enumerate(rows) if row.stopped or row.round > start}
    some = next(row for row in rows if row.round == start)  # what is computed in the place of those that are parked
    counted = [some if r in parked else row for r, row in enumerate(rows)]
    state = driver.stack([row.state for row in counted])
    controllers = [row.controller for row in counted]
    checksums = list(map(metrics.chained, records))
    return LoopState(start, state, controllers, records, checksums, parked), lambda kept: lambda: state


def _begin(group: Group, kept: Kept) -> Callable[[], Any]:
    """Starts to compile the first state, and returns a function that returns it."""
    trials, first = group.trials, group.trials[0]
    beside = ThreadPoolExecutor(1)
    compiling = beside.submit(kept.lower('initial state', lambda: init_state(first).lower(first.key)))
    beside.shutdown(wait=False)

    @functools.cache
    def initial() -> Any:
        init = compiling.result()
        with hosts.together():
            memory.check('initial state', init, group.config)
        inits = [init if trial.algorithm is first.algorithm else init_state(trial) for trial in trials]
        return group.driver.stack([begin(trial.key) for begin, trial in zip(inits, trials, strict=True)])

    return initial


def _requests(run: Run, records: Mapping[int, metrics.Records], signum: int = 0) -> tuple[int, list[bool]]:
    """Agrees with the other processes: a signal that one has received, and which trials of a run stop.

    These are those whose last line in `records`, by index, has an evaluation, and that callbacks wish to stop.
    """
    key = run.trials[0].headline.key
    wishes = [seed in run.wishes and key in records[r][-1] for r, seed in run.by_row.items()]
    signum, *stops = hosts.largest([signum, *wishes])
    return signum, list(map(bool, stops))


@machine.gc_paused()
def _compile(
    group: Group, progress: LoopState, upcoming: RoundInputs, arguments: tuple, initial: Callable[[], Any], kept: Kept
) -> Programs:
    """Compiles the round, whose state is donated, and the evaluation; the diagnostics compile when first due."""
    driver, config, trials, first = group.driver, group.config, group.trials, group.trials[0]
    jit = compile_with(config)
    seconds: dict[str, float] = {}

    def compile_round(at_once: int) -> Any:
        with _compiling('round', seconds, group, kept), ThreadPoolExecutor(1) as beside:  # XLA releases the GIL
            name = f'round of {at_once}' if at_once else 'round'
            make = kept.lower(name, lambda: jit(driver.round(at_once), donate_argnums=1).lower(*arguments))
            if first.costs.enabled:  # measures the pieces: the first round would take a second longer
                beside.submit(_measure_pieces, first, kept)
            return make()

    round_, at_once = compile_round(0), len(trials)
    initial()  # first: if the state alone is too large, other keys help
    while True:
        try:
            with hosts.together():
                memory.check('compiled round', round_, config)
            break
        except memory.TooLarge as error:
            if driver.map != 'vmap' or at_once == 1:
                raise
            at_once //= 2
            what = f'{at_once} of {len(trials)} trials are computed at once'
            hosts.on_first(partial(warn, f'{str(error).partition("; use ")[0]}: {what}'))
            round_ = compile_round(at_once)
    with _compiling('evaluation', seconds, group, kept):
        images = evaluation.evaluated(trials)
        evaluate = evaluation.build_evaluate(trials, images, kept)
        trivial_scores = evaluation.trivial_scores(trials, images)
        global_loss = evaluation.build_global_loss(trials)
    if first.costs.enabled:  # a price that fails must do so before anything is written
        index = max(progress.round, config.pre_rounds)
        costs.price_round(first.costs, index, 1, upcoming.clients[0] or inputs.participation(first, index))
    diagnose = diagnostics.build(first, jit) if config.diagnostics_every else None
    return Programs(round_, evaluate, global_loss, trivial_scores, diagnose, seconds)


def _measure_pieces(first: Experiment, kept: Kept) -> None:
    costs.take_over(first.costs.models, kept.value('pieces', lambda: first.costs.task_pieces))


@contextmanager
def _compiling(program: str, seconds: dict[str, float], group: Group, kept: Kept) -> Iterator[None]:
    """Reports a compilation and records its duration in seconds."""
    group.emit(events.Compiling(program))
    start = time.monotonic()
    with machine.count_compilations() as programs:
        yield
    seconds[program] = time.monotonic() - start
    found = not programs['cache_misses'] and (programs['cache_hits'] > 0 or program in kept.loaded)
    group.emit(events.Compiled(program, seconds[program], found))


def _report(
    group: Group,
    programs: Programs,
    progress: LoopState,
    state: Any,
    controllers: list[frequency.FrequencyState],
    measured: list[dict[str, Any]],
    clients: Sequence[costs.Clients | None],
    seconds: float,
) -> LoopState:
    """Checks, evaluates and reports the round after `progress`; `controllers`, `measured` and `clients` are [R]."""
    config, trials, number, counted = group.config, group.trials, progress.round + 1, progress.counted
    k_s = [int(controller.k_s) for controller in progress.controllers]
    states = functools.cache(lambda: group.driver.split(state))
    for run in group.runs:
        with _diverging(group, run):
            for r in _of(run, counted):
                checks.check_losses(*run.place(r), number, measured[r], clients[r])
    progress = _without_diverged(group, progress, number, states, controllers)
    counted = progress.counted

    last = number == config.rounds
    diagnose = programs.diagnose if last or number % (config.diagnostics_every or 1) == 0 else None
    scores: list[evaluation.Scores] = [{} for _ in trials]
    if last or number % config.eval_every == 0:
        for r in counted:
            scores[r] = programs.evaluate[r](states()[r])
            if programs.global_loss:
                measured[r][tasks.GLOBAL_LOSS] = np.float32(programs.global_loss[r](states()[r]))
    if diagnose:
        for run in group.runs:
            own = {run.by_row[r]: diagnose(trials[r], states()[r], number, k_s[r]) for r in _of(run, counted)}
            run.emit(events.Diagnosed(number, own))

    images = sum(map(inputs.images_per_round, trials, clients, k_s, measured))
    records, checksums = progress.records, [*progress.checksums]
    for r in counted:
        values = measured[r], scores[r], clients[r], records[r]
        record = metrics.make_record(trials[r], number, k_s[r], *values, seconds, images)
        records[r].append(record)  # in place: copies of all lines in every round would add up
        checksums[r] = metrics.chain(checksums[r], record)
    progress = progress._replace(round=number, state=state, controllers=controllers, checksums=checksums)

    def save(run: Run, seed: int, name: str) -> None:
        r = run.first + run.seeds.index(seed)
        if run.folder:
            run.folder.save(name, number, {r - run.first: progress.tree(r, states())}, checksums[run.first :], 1)

    for run in group.runs:
        if lines := {run.by_row[r]: records[r] for r in _of(run, counted)}:
            of_seed = partial(lambda run, seed: states()[run.first + run.seeds.index(seed)], run)
            run.emit(events.RoundDone(number, lines, of_seed, partial(save, run)))
    return progress


def _of(run: Run, rows: Sequence[int]) -> list[int]:
    """Returns those of the rows that are the run's."""
    return [r for r in rows if r in run.rows]


@contextmanager
def _diverging(group: Group, run: Run) -> Iterator[None]:
    """Keeps the error of a run that diverges beside others."""
    try:
        yield
    except Diverged as error:
        if len(group.runs) == 1:
            raise
        run.error.append(error)
        warn(f'{run.title}{error}')


def _without_diverged(
    group: Group,
    progress: LoopState,
    number: int,
    states: Callable[[], Sequence[Any]],
    controllers: Sequence[frequency.FrequencyState],
) -> LoopState:
    """Parks the trials of runs that have diverged in round `number`."""
    rows = [r for run in group.runs if run.error for r in _of(run, progress.counted)]
    if not rows:
        return progress
    new = {r: Parked(number, states()[r], controllers[r], True) for r in rows}
    return progress._replace(parked={**progress.parked, **new})


def _save(group: Group, programs: Programs, progress: LoopState, request: interrupt.Request) -> LoopState:
    """Saves the state if it is due or something is to stop, and parks the trials that stop early.

    Raises:
      Stopped: on a request to stop before the last round.
    """
    config, number = group.config, progress.round
    last, signum, stopping = number == config.rounds, 0, list[int]()
    for run in group.runs if not last else ():
        if rows := _of(run, progress.counted):
            signum, wishes = _requests(run, dict(enumerate(progress.records)), request.signum)
            stopping += [r for r in rows if wishes[r - run.first]]
    if last or signum or stopping or number % config.checkpoint_every == 0:
        states = group.driver.split(progress.state)
        for run in group.runs:
            with _diverging(group, run):
                for r in _of(run, progress.counted):
                    checks.check_weights(*run.place(r), number, states[r])
        progress = _without_diverged(group, progress, number, lambda: states, progress.controllers)
        for run in group.runs:
            trees = {r - run.first: progress.tree(r, states) for r in _of(run, progress.counted)}
            if run.folder and trees:
                own = progress.checksums[run.first :]
                save = partial(run.folder.save, 'checkpoints', number, trees, own, config.checkpoints_kept)
                hosts.on_first(save)
    if signum:
        folders = any(run.folder for run in group.runs)
        advice = 'the same command resumes from there' if folders else 'nothing is saved without a folder'
        raise interrupt.Stopped(f'stopped after round {number}; {advice}', signum)
    if stopping:
        new = {r: Parked(number, states[r], progress.controllers[r], True) for r in stopping}
        progress = progress._replace(parked={**progress.parked, **new})
        for run in group.runs:
            if run.folder and progress.goes_on(config.rounds):  # else all summaries are about to be written
                of_trials = {r - run.first: _summarize_trial(run, programs, progress, r) for r in _of(run, stopping)}
                run.folder.write_summaries(of_trials)
    return _take_back(group, progress)


def _take_back(group: Group, progress: LoopState) -> LoopState:
    """Counts trials again that have resumed from the round that the others have reached now."""
    back = {r: each for r, each in progress.parked.items() if not each.stopped and each.round == progress.round}
    if not back:
        return progress
    states, controllers = group.driver.split(progress.state), [*progress.controllers]
    for r, each in back.items():
        states[r], controllers[r] = each.state, each.controller
    parked = {r: each for r, each in progress.parked.items() if r not in back}
    return progress._replace(state=group.driver.stack(states), controllers=controllers, parked=parked)


def _summarize_trial(run: Run, programs: Programs, progress: LoopState, r: int) -> dict[str, Any]:
    """Returns the summary of a trial, in process 0."""
    values = progress.records[r], progress.checksums[r], programs.trivial_scores[r], programs.seconds
    stopped = run.wishes[run.by_row[r]] if r in progress.parked and progress.parked[r].stopped else ''
    return file_io.seal(metrics.summarize_trial(run.trials[r - run.first], *values, len(run.trials), stopped))


def _summarize(
    group: Group, run: Run, programs: Programs, progress: LoopState
) -> tuple[dict[int, dict[str, Any]], dict[str, Any]]:
    """Returns the summary of every trial of a run and that of the run; with a single trial, they are the same."""
    if run.error:
        return {}, {}
    summaries = {r - run.first: _summarize_trial(run, programs, progress, r) for r in run.rows}
    if not run.config.seeds:
        return summaries, summaries[0]
    return summaries, file_io.seal(metrics.summarize_trials(run.config, group.driver.map, list(summaries.values())))
