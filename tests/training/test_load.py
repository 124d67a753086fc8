"""Runs that are opened again."""

import re
import shutil

import numpy as np
import pytest

import semisfl_jax as sfl
from semisfl_jax import algorithms
from semisfl_jax.base.errors import UserError
from semisfl_jax.training import load
from tests.helpers import runs


def config(**changes):
    return sfl.get_config('digits', runs.TINY | changes)


CHEAP = config(algorithm='supervised_only', rounds=2)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A tiny run of two rounds, saved after the second, in the home folder: a shell leaves ~ in --workdir=~/x."""
    home = tmp_path_factory.mktemp('reopened')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('HOME', str(home))
        sfl.train(CHEAP, '~/run')
    return home / 'run'


def copy(folder, target, old, new):
    """A copy of a run with another configuration."""
    shutil.copytree(folder, target)
    text = (target / 'config.json').read_text()
    assert text.count(old) == 1
    (target / 'config.json').write_text(text.replace(old, new))
    return target


def test_a_trained_model_classifies_as_it_was_judged(folder):
    before = runs.files(folder)
    trained = sfl.load_trained(folder)
    assert (trained.round, trained.headline) == (2, 'student')
    images, labels = trained.experiment.dataset.test_images, trained.experiment.dataset.test_labels
    logits = trained.predict(images)['student']
    assert logits.shape == (360, 10)
    accuracy = float(np.mean(logits.argmax(axis=1) == labels))
    first, last = runs.records(folder)
    assert accuracy == last['student_accuracy'] != first['student_accuracy']
    number, state = load.state(folder, trained.experiment)
    assert number == state.round == 2
    predicted = np.asarray(trained.experiment.algorithm.predict(state, images)['student']).argmax(axis=1)
    assert float(np.mean(predicted == labels)) == accuracy
    trained.experiment.config.unlock()
    trained.experiment.config.eval_batch_size = 7  # the last of three batches has three images that do not count
    np.testing.assert_allclose(trained.predict(images[:18])['student'], logits[:18], rtol=1e-4, atol=1e-5)
    initial = sfl.load_trained(str(folder), round_number=0)
    assert initial.round == 0
    assert not np.allclose(initial.predict(images[:2])['student'], logits[:2])
    assert runs.files(folder) == before
    for shape, kind in (((2, 8, 8, 1), 'float32'), ((2, 9, 8, 1), 'uint8'), ((0, 8, 8, 1), 'uint8')):
        with pytest.raises(UserError, match=re.escape(f'{list(shape)} of {kind}')):
            trained.predict(np.zeros(shape, kind))


def test_the_top_makes_logits_of_the_features(folder):
    trained = sfl.load_trained(folder)
    images, model = trained.experiment.dataset.test_images[:20], trained.experiment.model
    features = trained.features(images)
    assert {name: values.shape for name, values in features.items()} == {'student': (20, 128), 'teacher': (20, 128)}
    logits = model.top(trained.state.student.top, features['student'], None, False)[0]
    np.testing.assert_allclose(logits, trained.predict(images)['student'], rtol=1e-4, atol=1e-5)
    assert not np.allclose(features['student'], features['teacher'])


def test_a_model_in_parts_has_no_features(folder, monkeypatch):
    trained = sfl.load_trained(folder)
    monkeypatch.setattr(trained, '_built', trained._built._replace(method=algorithms.METHODS['fedmatch']))
    with pytest.raises(UserError, match='several parts'):
        trained.features(np.zeros((1, 8, 8, 1), np.uint8))


def test_what_is_not_there_is_named_but_devices_which_are_not_needed(folder, tmp_path):
    trial = load.experiment(folder)
    for place, rounds in ((folder, {'round_number': 1}), (tmp_path, {})):
        with pytest.raises(UserError, match='round 1'):
            load.state(place, trial, **rounds)
    with pytest.raises(UserError, match=str(tmp_path)):
        sfl.load_trained(tmp_path)
    for name in ('supervised_only', 'small_cnn'):
        with pytest.raises(UserError, match=r'mine.*register'):
            load.experiment(copy(folder, tmp_path / name, f'"{name}"', '"mine"'))
    assert load.experiment(copy(folder, tmp_path / 'many', '"devices": 1', '"devices": 64')).mesh is None
    several = copy(folder, tmp_path / 'several', '"seeds": []', '"seeds": [0, 1]')
    with pytest.raises(UserError, match='seed_N'):
        load.experiment(several)
    assert sfl.runs.trials(str(folder)) == [folder]
    assert sfl.runs.read_run(str(folder)).seed == 0
