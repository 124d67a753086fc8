"""The training loop, from a configuration to a trained model and, on request, a folder of outputs.

Configuration, data and programs are checked before the folder is modified. After that a run may be killed at any time:
when restarted, it resumes from its last checkpoint and writes the same outputs as an uninterrupted run.

Several processes may compute one run (`hosts`): all execute this loop in lockstep, and process 0 writes and reports.
"""

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
from semisfl_jax import core, costs, data, tasks
from semisfl_jax.base import file_io, hosts, machine
from semisfl_jax.base.errors import warn
from semisfl_jax.config import ignored_keys
from semisfl_jax.config.resolve import count_devices
from semisfl_jax.core import frequency
from semisfl_jax.training import checks, diagnostics, evaluation, events, inputs, interrupt, memory, metrics, outputs
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training.checkpoint import installed_versions
from semisfl_jax.training.describe import describe
from semisfl_jax.training.driver import Driver, RoundInputs, init_state
from semisfl_jax.training.experiment import Experiment, compile_with
from semisfl_jax.training.load import Result


def train(
    config: ConfigDict,
    folder: str | os.PathLike | None = None,
    on_event: events.Listener | None = None,
    interrupts: Callable[[], AbstractContextManager[interrupt.Request]] = interrupt.ignore,
    dataset: data.Dataset | None = None,
) -> Result:
    """Trains one experiment, or resumes it: one trial, or one for each of several seeds.

    It logs only warnings and prints nothing; the command's listener is `training.events.console`.

    Args:
      config: a configuration, as `get_config` returns it.
      folder: the output folder, from which an interrupted run resumes. None writes no files and saves no checkpoints.
      on_event: called in process 0 with everything that the run reports, see `training.events`.
      interrupts: a block around the rounds that may ask to stop after the current one, such as `interrupt.listen`,
        with which Ctrl-C, or the stop button of a notebook, saves the state first.
      dataset: data in memory, from `data.from_arrays`, in place of those that `config.data` names. `data.name` and, if
        they have clients, `federation.partition` and `num_clients` follow. Resuming takes the same data again.

    Returns:
      The result; if an earlier call finished the run, it is read from `folder`.

    Raises:
      UserError: an invalid configuration or argument, missing data, an unusable folder, a folder with more rounds
        than `config.rounds`.
      Diverged: a loss or a weight became NaN or infinite.
      Stopped: `interrupts` asked for it; the state is saved if at least one round was done and there is a folder.
    """
    full = experiment_lib.with_data(config, dataset)
    config_lib.check(full)
    told = list(ignored_keys.warnings(full, ignored_keys.changed(config)))
    return train_resolved(config_lib.resolve(full), folder, on_event, interrupts, told, dataset)


@memory.explained()
def train_resolved(
    config: ConfigDict,
    folder: str | os.PathLike | None = None,
    on_event: events.Listener | None = None,
    interrupts: Callable[[], AbstractContextManager[interrupt.Request]] = interrupt.ignore,
    told: Sequence[str] = (),
    dataset: data.Dataset | None = None,
) -> Result:
    """Trains as `train` does, from a configuration that is checked and resolved.

    Args:
      config: configuration, resolved.
      folder: as in `train`.
      on_event: as in `train`.
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
        hosts.on_first(lambda: on_event and on_event(events.Finished(finished, folder, earlier=True)))
        return Result(finished, homes=outputs.trial_folders(folder, config))
    if config.compilation_cache:
        machine.cache_programs(data.default_cache_dir() / 'compiled')
    trials = _build_trials(config, folder, dataset)
    driver = Driver(trials, config.parallel.trials, devices)
    outlet = outputs.RunFolder(folder, config, trials) if folder else None
    run = Run(driver, trials, config, outlet, [on_event] if on_event else [])
    run.emit(events.Described(describe(trials, devices), folder))
    hosts.on_first(lambda: list(map(warn, (*told, *inputs.warnings(trials)))))
    with interrupts() as request:
        return _train(run, request)


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
    listeners: list[events.Listener]

    @property
    def places(self) -> list[tuple[str, Path | None]]:
        """Each trial's prefix of messages, 'seed 3: ' or '' for a single one, and its folder, [R]."""
        names = [f'seed {seed}: ' for seed in self.config.seeds] or ['']
        return list(zip(names, self.folder.homes if self.folder else [None] * len(names), strict=True))

    def emit(self, event: events.Event) -> None:
        """Reports an event in process 0, where an error ends all processes."""
        hosts.on_first(lambda: [listen(event) for listen in self.listeners])


class LoopState(NamedTuple):
    """The progress of a run between two rounds."""

    round: int  # rounds completed
    state: Any  # of all trials, see `Driver`
    controllers: list[frequency.FrequencyState]  # [R], of K_s
    records: list[metrics.Records]  # [R], so far
    checksums: list[str]  # [R], of the records, by `metrics.chain`


class Programs(NamedTuple):
    """The programs that a run compiles before its first round."""

    round: Callable[..., tuple[Any, Any]]  # as `Driver.round`
    evaluate: list[Callable[[Any], evaluation.Scores]]  # [R], of the state of each trial
    global_loss: list[Callable[[Any], float]]  # likewise, [] if the method has none
    trivial_scores: list[dict[str, dict[str, float]]]  # [R], the same for every state
    diagnose: Callable[..., dict[str, np.ndarray]] | None
    seconds: dict[str, float]  # {program: duration of its compilation}


def _train(run: Run, request: interrupt.Request) -> Result:
    """Trains up to the last round."""
    config, driver, folder = run.config, run.driver, run.folder
    progress = _start(run)
    stream = driver.inputs(progress.round)
    upcoming = next(stream)
    programs = _compile(run, progress, upcoming)
    if signum := hosts.largest(request.signum):
        raise interrupt.Stopped(f'stopped before round {progress.round + 1}: nothing to save', signum)
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
            controllers, values = driver.finish(index, progress.controllers, state, measured, clients)
            seconds = time.monotonic() - start
            progress = _report(run, programs, progress, state, values, clients, seconds)
            progress = progress._replace(controllers=controllers)
            _save(run, progress, request)
        summaries, run_summary = hosts.from_first(lambda: _summarize(run, programs, progress))
        if folder:
            hosts.on_first(lambda: folder.write_summaries(summaries, run_summary))
    hosts.on_first(lambda: list(map(warn, inputs.warnings_after(config.pre_rounds, progress.records))))
    run.emit(events.Finished(run_summary, folder.path if folder else None, earlier=False))
    return Result(run_summary, progress.records, driver.split(progress.state))


@machine.gc_paused()
def _start(run: Run) -> LoopState:
    """Returns the state of the last checkpoints, or the initial state."""
    driver, first, folder = run.driver, run.trials[0], run.folder
    controller = frequency.init(first.frequency)
    template = {'algorithm': first.state_shapes, 'frequency': controller}
    resumed = hosts.from_first(lambda: folder.restore(template)) if folder else None
    if resumed is None:
        init = init_state(first).lower(first.key).compile()
        with hosts.together():
            memory.check('initial state', init, run.config)
        inits = [init if trial.algorithm is first.algorithm else init_state(trial) for trial in run.trials]
        states = [begin(trial.key) for begin, trial in zip(inits, run.trials, strict=True)]
        return LoopState(0, driver.stack(states), [controller] * len(states), [[] for _ in states], [''] * len(states))
    (number, trees, _), records = resumed
    run.emit(events.Resumed(number))
    states = [core.clients.replicate(first.mesh, jax.tree.map(jnp.array, tree['algorithm'])) for tree in trees]
    controllers = [tree['frequency'] for tree in trees]
    return LoopState(number, driver.stack(states), controllers, records, list(map(metrics.chained, records)))


@machine.gc_paused()
def _compile(run: Run, progress: LoopState, upcoming: RoundInputs) -> Programs:
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
    measured: list[dict[str, Any]],
    clients: Sequence[costs.Clients | None],
    seconds: float,
) -> LoopState:
    """Checks, evaluates and reports the round after `progress`; `measured` and `clients` are lists [R]."""
    config, trials, number = run.config, run.trials, progress.round + 1
    k_s = [int(controller.k_s) for controller in progress.controllers]
    for place, values, participants in zip(run.places, measured, clients, strict=True):
        checks.check_losses(*place, number, values, participants)

    last = number == config.rounds
    diagnose = programs.diagnose if last or number % (config.diagnostics_every or 1) == 0 else None
    scores: list[evaluation.Scores] = [{} for _ in trials]
    if last or diagnose or number % config.eval_every == 0:
        states = run.driver.split(state)
        if last or number % config.eval_every == 0:
            scores = [evaluate(each) for evaluate, each in zip(programs.evaluate, states, strict=True)]
            for values, loss, each in zip(measured, programs.global_loss, states, strict=False):
                values[tasks.GLOBAL_LOSS] = np.float32(loss(each))
        if diagnose:
            arrays = [diagnose(trials[r], states[r], number, k_s[r]) for r in range(len(trials))]
            run.emit(events.Diagnosed(number, arrays))

    images = sum(map(inputs.images_per_round, trials, clients, k_s, measured))
    lines = progress.records
    records = [
        metrics.make_record(trials[r], number, k_s[r], measured[r], scores[r], clients[r], lines[r], seconds, images)
        for r in range(len(trials))
    ]
    run.emit(events.RoundDone(records))
    for earlier, record in zip(lines, records, strict=True):
        earlier.append(record)  # in place: copies of all lines in every round would add up
    checksums = list(map(metrics.chain, progress.checksums, records))
    return progress._replace(round=number, state=state, checksums=checksums)


def _save(run: Run, progress: LoopState, request: interrupt.Request) -> None:
    """Saves the state if it is due; a request to stop before the last round also saves it, and ends the run."""
    number, last = progress.round, progress.round == run.config.rounds
    signum = 0 if last else hosts.largest(request.signum)
    if last or signum or number % run.config.checkpoint_every == 0:
        states = run.driver.split(progress.state)
        for place, state in zip(run.places, states, strict=True):
            checks.check_weights(*place, number, state)
        run.emit(events.Snapshot(number, states, progress.controllers, progress.checksums))
    if signum:
        advice = 'the same command resumes from there' if run.folder else 'nothing is saved without a folder'
        raise interrupt.Stopped(f'stopped after round {number}; {advice}', signum)


def _summarize(run: Run, programs: Programs, progress: LoopState) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns the summary of every trial and that of the run; with a single trial, they are the same."""
    summaries = [
        file_io.seal(metrics.summarize_trial(*values, programs.seconds, len(run.trials)))
        for values in zip(run.trials, progress.records, progress.checksums, programs.trivial_scores, strict=True)
    ]
    if not run.config.seeds:
        return summaries, summaries[0]
    return summaries, file_io.seal(metrics.summarize_trials(run.config, run.driver.map, summaries))
