"""A folder read back is the run that wrote it, and reading leaves it alone."""

import json
import os
import re
import shutil

import jax
import numpy as np
import pytest

import semisfl_jax as sfl
from semisfl_jax.core.errors import UserError
from semisfl_jax.training import checkpoint, load
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


def test_the_state_is_the_one_that_was_evaluated(folder, tmp_path):
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


@pytest.mark.parametrize(
    'images',
    [
        np.zeros((8, 8, 1), np.uint8),
        np.zeros((2, 8, 8, 1), np.float32),
        np.zeros((2, 9, 8, 1), np.uint8),
        np.zeros((0, 8, 8, 1), np.uint8),
    ],
)
def test_images_of_another_kind_are_one_line(folder, images):
    message = f'images is an array {list(images.shape)} of {images.dtype}; give [N, 8, 8, 1] of uint8'
    with pytest.raises(UserError, match='^' + re.escape(message)):
        sfl.load_trained(folder).predict(images)


def test_no_run_no_model(tmp_path):
    with pytest.raises(UserError, match='holds no run'):
        sfl.load_trained(tmp_path)
    with pytest.raises(UserError, match='folder=None holds no run'):
        sfl.load_trained(None)


def test_round_0_is_the_initial_state(folder):
    trial = load.experiment(folder)
    number, state = load.state(folder, trial, round_number=0)
    assert number == state.round == 0
    for ours, theirs in zip(jax.tree.leaves(state.student), jax.tree.leaves(state.teacher), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    after = load.state(folder, trial)[1]
    assert not np.array_equal(jax.tree.leaves(after.student)[0], jax.tree.leaves(state.student)[0])


def test_a_run_of_many_devices_opens_on_one(folder, tmp_path):
    opened = load.experiment(copy(folder, tmp_path / 'run', parallel__devices=64))
    assert opened.mesh is None


def test_a_damaged_checkpoint_is_named_and_left_as_it_is(folder, tmp_path):
    damaged = copy(folder, tmp_path / 'run')
    for path in (damaged / 'checkpoints' / '2').rglob('*'):
        if path.is_file() and path.stat().st_size:
            os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(UserError, match=r'checkpoint of round 2 .* cannot be used: it cannot be read'):
        load.state(damaged, load.experiment(damaged))
    assert checkpoint.rounds_saved(damaged / 'checkpoints') == [2]


def test_what_is_not_there_is_named(folder, tmp_path):
    trial = load.experiment(folder)
    with pytest.raises(UserError, match='no checkpoint of round 1: it has those of rounds 2'):
        load.state(folder, trial, round_number=1)
    with pytest.raises(UserError, match='no checkpoint of round 1 or later: it has none'):
        load.state(tmp_path, trial)
    with pytest.raises(UserError, match='holds no run'):
        load.experiment(tmp_path)
    for index, changes in enumerate(({'algorithm': 'mean_teacher'}, {'model__name': 'mine'})):
        with pytest.raises(
            UserError, match=f'{next(iter(changes.values()))}.* is not registered here; if it is yours, '
        ):
            load.experiment(copy(folder, tmp_path / f'foreign{index}', **changes))
    with pytest.raises(UserError, match='holds several seeds'):
        load.experiment(copy(folder, tmp_path / 'several', seeds=[0, 1]))
    with pytest.raises(
        UserError, match=r'holds several seeds; give one of its folders seed_N, which runs\.trials lists'
    ):
        sfl.runs.read(str(tmp_path / 'several'))
    assert sfl.runs.trials(str(folder)) == [folder]
    assert sfl.runs.read(str(folder)).seed == 0
