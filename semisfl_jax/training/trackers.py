"""Trackers: where a run with a folder also writes its metrics, one entry for each seed (`trackers`).

What else a tracker has to know (server, project, whether it is offline) it takes from its own environment variables.
"""

import hashlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from semisfl_jax import config as config_lib
from semisfl_jax import tasks
from semisfl_jax.base.errors import UserError, install
from semisfl_jax.training import checks, metrics
from semisfl_jax.training.events import Callback, Described, Ended, Event, Finished, RoundDone

Log = Callable[[int, Mapping[str, float]], None]  # of a round, values by name
Close = Callable[[bool], None]  # whether the run has finished
_MLFLOW_PARAMS = 100  # at a time


class Seed(NamedTuple):
    """A seed of a run."""

    home: Path  # its folder
    run: Path  # that of the run, which `home` is or which holds it
    config: ConfigDict
    first: int  # the first round to be logged

    @property
    def id(self) -> str:
        """The name by which a tracker knows it again when it resumes."""
        began = (self.home / 'began.json').stat().st_mtime_ns  # a folder may have been deleted and filled again
        return hashlib.sha256(f'{self.home.absolute()} {began}'.encode()).hexdigest()[:16]

    @property
    def name(self) -> str:
        """The name that people read."""
        return self.run.name if self.home == self.run else f'{self.run.name}/{self.home.name}'


def tensorboard(seed: Seed) -> tuple[Log, Close]:
    """Opens a new file of TensorBoard events, which hides what other files of the folder have from its round on.

    The process writes it itself. tensorboardX's SummaryWriter leaves that to a thread, which a full disk ends: the run
    would wait forever once that thread's queue is full.
    """
    with _without_init('tensorboardX'):
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event as TensorBoardEvent
        from tensorboardX.proto.event_pb2 import SessionLog
        from tensorboardX.proto.summary_pb2 import Summary

    folder = seed.home / 'tensorboard'
    folder.mkdir(parents=True, exist_ok=True)
    # The name has the second and the round: if two starts share both, the later one deletes only what it would hide
    events, start = EventsWriter(str(folder / 'events'), f'.{seed.first:09}'), SessionLog(status=SessionLog.START)
    events.write_event(TensorBoardEvent(wall_time=time.time(), step=seed.first, session_log=start))

    def log(number: int, values: Mapping[str, float]) -> None:
        scalars = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
        events.write_event(TensorBoardEvent(wall_time=time.time(), step=number, summary=scalars))
        events.flush()

    return log, lambda finished: events.close()


@contextmanager
def _without_init(package: str) -> Iterator[None]:
    """Imports modules of a package within the block without its __init__; tensorboardX's takes seconds for PyTorch."""
    if package in sys.modules:
        yield
        return
    spec = importlib.util.find_spec(package)
    assert spec
    sys.modules[package] = importlib.util.module_from_spec(spec)
    try:
        yield
    finally:
        del sys.modules[package]  # who imports it next gets all of it


def wandb(seed: Seed) -> tuple[Log, Close]:
    """Opens a run of Weights & Biases, in the group of all seeds."""
    import wandb

    named: dict[str, Any] = {'id': seed.id, 'name': seed.name, 'group': seed.run.name}
    config = config_lib.flatten(seed.config)
    quiet = wandb.Settings(silent=True)
    run = wandb.init(dir=seed.home, config=config, resume='allow', reinit='create_new', settings=quiet, **named)
    return lambda number, values: run.log(dict(values), step=number), lambda finished: run.finish(int(not finished))


def mlflow(seed: Seed) -> tuple[Log, Close]:
    """Opens a run of MLflow; those of several seeds are below one for all of them."""
    from mlflow import MlflowClient, entities, set_experiment

    client = MlflowClient()
    experiment = set_experiment(os.environ.get('MLFLOW_EXPERIMENT_NAME', 'semisfl')).experiment_id

    def find(name: str, key: str, tags: Mapping[str, str]) -> str:
        found = client.search_runs([experiment], f"tags.`semisfl.id` = '{key}'")
        run = found[0] if found else client.create_run(experiment, run_name=name, tags={'semisfl.id': key, **tags})
        return run.info.run_id

    parent = {}
    if seed.home != seed.run:
        parent = {'mlflow.parentRunId': find(seed.run.name, str(seed.run.absolute()), {})}
    run_id = find(seed.name, seed.id, parent)
    params = [entities.Param(key, str(value)) for key, value in config_lib.flatten(seed.config).items()]
    for i in range(0, len(params), _MLFLOW_PARAMS):
        client.log_batch(run_id, params=params[i : i + _MLFLOW_PARAMS])

    def log(number: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        client.log_batch(run_id, [entities.Metric(name, value, now, number) for name, value in values.items()])

    return log, lambda finished: client.set_terminated(run_id, 'FINISHED' if finished else 'KILLED')


OPEN = {'tensorboard': tensorboard, 'wandb': wandb, 'mlflow': mlflow}


def tracker(name: str, run: Path, homes: Mapping[int, Path], configs: Mapping[int, ConfigDict]) -> Callback:
    """Returns the callback that logs to a tracker of `OPEN`, given the folder of a run, and those of its seeds."""
    opened: dict[int, tuple[Log, Close]] = {}
    finished = False

    def call(event: Event) -> None:
        nonlocal finished
        match event:
            case Described() if name != 'tensorboard' and not importlib.util.find_spec(name):
                raise UserError(f"config.trackers='{name}' needs {name}: {install('trackers')}")
            case RoundDone(number, lines):
                for seed, (*_, line) in lines.items():
                    if seed not in opened:
                        opened[seed] = OPEN[name](Seed(homes[seed], run, configs[seed], number))
                    opened[seed][0](number, scalars(line))
            case Finished():
                finished = True
            case Ended():
                for _, close in opened.values():
                    close(finished)

    return call


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """Returns the values of a line of metrics.jsonl by the names that they have in trackers.

    They are grouped under FAKE for synthetic images, and scores under VALIDATION if they are of validation images.
    """
    group, values = 'FAKE/' if record.get('fake') else '', {}
    for key, value in metrics.numbers(record).items():
        if key not in ('round', *checks.MARKS) and value is not None:
            part = 'VALIDATION/' if record.get('validation') and tasks.split_key(key) else ''
            values[group + part + key] = value
    return values
