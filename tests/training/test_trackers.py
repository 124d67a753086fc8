"""Trackers: lines of metrics.jsonl, hyper-parameters and groups of seeds, read back from the files that they left."""

import importlib.util
import json
import sys
import time

import numpy as np
import pytest

import semisfl_jax as sfl
from semisfl_jax.base.errors import UserError
from semisfl_jax.config import schema
from semisfl_jax.training import trackers
from tests.helpers import runs, wandb_file
from tests.helpers.tensorboard import events

CHEAP = {**runs.TINY, 'algorithm': 'supervised_only', 'rounds': 3, 'seeds': (3, 0), 'lr': 0.25}
LOGGED = 'loss_supervised', 'student_accuracy', 'lr'


def train(folder, name, rounds=3):
    """A run of two seeds, killed after two rounds, of which the first was saved; and gone on with."""

    def die(event):
        if isinstance(event, sfl.events.RoundDone) and event.round == 2:
            raise RuntimeError('killed')

    config = sfl.get_config('digits', CHEAP | {'trackers': (name,), 'checkpoint_every': 1, 'rounds': rounds})
    with pytest.raises(RuntimeError, match='killed'):
        sfl.train(config, folder, [die])
    sfl.train(config, folder)


def values(home):
    """What a tracker should have: {(round, key): value}."""
    return {(line['round'], key): line[key] for line in runs.records(home) for key in LOGGED}


def test_the_names_that_a_configuration_takes_are_trackers():
    assert tuple(trackers.OPEN) == schema.TRACKERS
    with pytest.raises(UserError, match=r"trackers: 'wandbb' is unknown; use one of .*; did you mean 'wandb'\?"):
        sfl.check(sfl.get_config('digits', trackers=('tensorboard', 'wandbb')))


def test_a_tracker_that_is_not_installed_is_one_line(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None if name == 'mlflow' else find(name))
    with pytest.raises(UserError, match=r"trackers='mlflow' needs mlflow: pip install 'semisfl_jax\[trackers\]'"):
        sfl.train(sfl.get_config('digits', CHEAP | {'trackers': ('tensorboard', 'mlflow')}), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_start_in_the_second_of_another_keeps_its_tensorboard_file(tmp_path, monkeypatch):
    monkeypatch.setattr(time, 'time', lambda: 1e9)
    for number in (3, 11, 10):
        log, close = trackers.tensorboard(trackers.Seed(tmp_path, tmp_path, None, number))
        log(number, {'lr': 0.5})
        assert number in [step for step, _, _ in events(tmp_path)[0]]  # before the end
        close(True)
    assert sorted(events(tmp_path)[0]) == [(3, 'lr', 0.5), (10, 'lr', 0.5), (11, 'lr', 0.5)]
    names = sorted(path.name for path in (tmp_path / 'tensorboard').iterdir())
    assert [int(name.rpartition('.')[2]) for name in names] == [3, 10, 11]  # TensorBoard reads them in this order


def test_tensorboard_files_are_written_without_the_rest_of_tensorboardx(tmp_path, monkeypatch):
    """It would import PyTorch: seconds at every start, where that is installed."""
    monkeypatch.delitem(sys.modules, 'tensorboardX', raising=False)
    _, close = trackers.tensorboard(trackers.Seed(tmp_path, tmp_path, None, 1))
    close(True)
    assert 'tensorboardX' not in sys.modules


def test_scores_of_other_images_have_other_names():
    line = {'round': 2, 'validation': True, 'student_accuracy': 0.5, 'lr': 1.0, 'loss_local': None}
    line['student_accuracy_per_class'] = [None, 0.25]
    by_class = {'VALIDATION/student_accuracy_per_class/1': 0.25}
    assert trackers.scalars(line) == {'VALIDATION/student_accuracy': 0.5, 'lr': 1.0, **by_class}
    assert trackers.scalars({'round': 2, 'fake': True, 'lr': 1.0}) == {'FAKE/lr': 1.0}


def test_nothing_is_tracked_without_trackers(tmp_path):
    sfl.train(sfl.get_config('digits', CHEAP | {'trackers': (), 'rounds': 1, 'seeds': ()}), tmp_path)
    assert not (tmp_path / 'tensorboard').exists()


@pytest.mark.slow
def test_wandb_offline_read_back(tmp_path, monkeypatch):
    """An entry for each start of each seed, by one id for both starts, which the server joins."""
    wandb = pytest.importorskip('wandb')
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv('WANDB_MODE', 'offline')
    train(tmp_path / 'run', 'wandb')
    wandb.teardown()  # as the end of a process does: waits until its service has written all
    for seed in (3, 0):
        home, ids, logged = tmp_path / 'run' / f'seed_{seed}', set(), {}
        files = sorted(home.glob('wandb/offline-run-*/*.wandb'), key=lambda path: path.stat().st_mtime_ns)
        assert len(files) == 2
        for file in files:
            for record in map(Record.FromString, wandb_file.records(file)):
                if record.HasField('run'):
                    ids.add(record.run.run_id)
                    config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
                    assert (config['lr'], config['seed']) == (0.25, seed)
                    assert (record.run.run_group, record.run.display_name) == ('run', f'run/seed_{seed}')
                items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                logged |= {(items['_step'], key): items[key] for key in LOGGED if '_step' in items}
        assert len(ids) == 1
        assert logged == values(home)


@pytest.mark.slow
def test_mlflow_in_sqlite_read_back(tmp_path, monkeypatch):
    """A run for each seed, below one for both; it goes on in the same run."""
    mlflow = pytest.importorskip('mlflow')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('MLFLOW_TRACKING_URI', f'sqlite:///{tmp_path}/mlflow.db')
    train(tmp_path / 'run', 'mlflow')
    client = mlflow.MlflowClient()
    (experiment,) = client.search_experiments(filter_string="name = 'semisfl'")
    found = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert sorted(found) == ['run', 'run/seed_0', 'run/seed_3']
    for seed in (3, 0):
        run = found[f'run/seed_{seed}']
        assert run.data.tags['mlflow.parentRunId'] == found['run'].info.run_id
        assert (run.data.params['lr'], run.data.params['seed'], run.info.status) == ('0.25', str(seed), 'FINISHED')
        histories = {key: client.get_metric_history(run.info.run_id, key) for key in LOGGED}
        logged = {(each.step, key): each.value for key, history in histories.items() for each in history}
        assert logged == pytest.approx(values(tmp_path / 'run' / f'seed_{seed}'))
        assert np.isfinite(list(logged.values())).all()
