"""A folder read back is the run that wrote it, and reading leaves it alone."""

import json
import re
import shutil

import numpy as np
import pytest

import semisfl_jax as sfl
from semisfl_jax.core.errors import UserError
from semisfl_jax.training import load
from tests import runs


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A tiny run of two rounds, saved after the second."""
    made = tmp_path_factory.mktemp('reopened') / 'run'
    assert runs.run(made, algorithm='supervised_only', rounds=2) == 0
    return made


def copy(folder, target, **changes):
    """A copy of a run with changes in its configuration."""
    shutil.copytree(folder, target)
    config = json.loads((target / 'config.json').read_text())
    for key, value in changes.items():
        *groups, name = key.split('__')
        section = config
        for group in groups:
            section = section[group]
        section[name] = value
    (target / 'config.json').write_text(json.dumps(config))
    return target


def accuracy(trial, state):
    labels = trial.dataset.test_labels
    logits = np.asarray(trial.algorithm.predict(state, trial.dataset.test_images)['student'])
    predicted = logits.argmax(axis=1)
    return float(np.mean(predicted == labels))


def test_the_state_is_the_one_that_was_evaluated(folder):
    before = runs.files(folder)
    trial = load.experiment(folder)
    number, state = load.state(folder, trial)
    assert number == state.round == 2
    first, last = runs.records(folder)
    assert accuracy(trial, state) == last['student_accuracy'] != first['student_accuracy']
    assert runs.files(folder) == before


def test_a_trained_model_classifies_as_it_was_judged(folder):
    trained = sfl.load_trained(folder)
    assert (trained.round, trained.headline) == (2, 'student')
    images, labels = trained.experiment.dataset.test_images, trained.experiment.dataset.test_labels
    logits = trained.predict(images)['student']
    assert logits.shape == (360, 10)
    assert float(np.mean(logits.argmax(axis=1) == labels)) == runs.records(folder)[-1]['student_accuracy']
    trained.experiment.config.unlock()
    trained.experiment.config.eval_batch_size = 7  # the last of three batches has three images that do not count
    np.testing.assert_allclose(trained.predict(images[:18])['student'], logits[:18], rtol=1e-4, atol=1e-5)
    initial = sfl.load_trained(str(folder), round_number=0)
    assert initial.round == 0
    assert not np.allclose(initial.predict(images[:2])['student'], logits[:2])


def test_images_of_another_kind_are_one_line(folder):
    trained = sfl.load_trained(folder)
    for shape, dtype in (
        ((8, 8, 1), 'uint8'),
        ((2, 8, 8, 1), 'float32'),
        ((2, 9, 8, 1), 'uint8'),
        ((0, 8, 8, 1), 'uint8'),
    ):
        message = f'images is an array {list(shape)} of {dtype}; give [N, 8, 8, 1] of uint8'
        with pytest.raises(UserError, match='^' + re.escape(message)):
            trained.predict(np.zeros(shape, dtype))


def test_a_run_of_many_devices_opens_on_one(folder, tmp_path):
    opened = load.experiment(copy(folder, tmp_path / 'run', parallel__devices=64))
    assert opened.mesh is None


def test_what_is_not_there_is_named(folder, tmp_path):
    trial = load.experiment(folder)
    with pytest.raises(UserError, match='no checkpoint of round 1: it has those of rounds 2'):
        load.state(folder, trial, round_number=1)
    with pytest.raises(UserError, match='no checkpoint of round 1 or later: it has none'):
        load.state(tmp_path, trial)
    with pytest.raises(UserError, match='holds no run'):
        sfl.load_trained(tmp_path)
    for key, name in (('algorithm', 'mean_teacher'), ('model__name', 'mine')):
        with pytest.raises(UserError, match=f'{name}.* is unknown.* what is yours is registered by'):
            load.experiment(copy(folder, tmp_path / name, **{key: name}))
    several = copy(folder, tmp_path / 'several', seeds=[0, 1])
    for reader in (load.experiment, sfl.runs.read):
        with pytest.raises(UserError, match='holds several seeds; give one of its folders seed_N'):
            reader(several)
    assert sfl.runs.trials(str(folder)) == [folder]
    assert sfl.runs.read(str(folder)).seed == 0
