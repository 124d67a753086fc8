"""Runs of data that are given in Python: the numbers of the same data by name, clients as the data have them, and what
resumes."""

import json
import shutil

import numpy as np
import pytest
from ml_collections import ConfigDict

import semisfl_jax as sfl
from semisfl_jax import data
from semisfl_jax.base.errors import UserError
from tests.helpers import runs

SETTINGS = {key: value for key, value in runs.TINY.items() if key != 'federation.partition'}


def config(**changes):
    return sfl.get_config('digits', SETTINGS, **{'rounds': 2, 'checkpoint_every': 1} | changes)


DIGITS = data.load(config().data)
WRITERS = np.random.default_rng(0).choice(['eve', 'bob', 'ann', 'dan', 'cat', 'fay'], len(DIGITS.train_labels))


def digits(shift=0, **others):
    """The digits as floats in [0, 1] without channels, which is no copy of what the reader gives."""
    train, test = DIGITS.train_images[..., 0] / 255, DIGITS.test_images[..., 0] / 255
    return data.from_arrays(np.abs(train - shift), DIGITS.train_labels, test, DIGITS.test_labels, **others)


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    """A run of the digits as arrays, and the same of three rounds."""
    root = tmp_path_factory.mktemp('given')
    for name, rounds in (('run', 2), ('longer', 3)):
        sfl.train(config(rounds=rounds), root / name, dataset=digits(classes='abcdefghij'))
    return root


@pytest.fixture
def copied(made, tmp_path):
    return shutil.copytree(made / 'run', tmp_path / 'run')


def test_arrays_have_the_numbers_of_the_same_data_by_name(made, tmp_path):
    asked = config()
    sfl.train(asked, tmp_path / 'by_name')
    assert runs.lines(tmp_path / 'by_name') == runs.lines(made / 'run')
    assert asked.to_dict() == config().to_dict()  # as it was given
    simulation = sfl.build(asked, digits())
    _, metrics = simulation.round(simulation.init())
    assert metrics['loss_supervised'] == np.float32(runs.records(made / 'run')[0]['loss_supervised'])
    padded, by_name = (data.load(config(data__pad_to=10).data, given) for given in (digits(), None))
    np.testing.assert_array_equal(padded.train_images, by_name.train_images)


def test_the_same_arrays_resume_and_others_do_not(copied, made):
    given = digits(classes='abcdefghij')
    again = ConfigDict(json.loads((copied / 'config.json').read_text()))
    assert sfl.train(again, copied, dataset=given).summary['rounds'] == 2
    for rounds, message in ((2, r'began with something else \(data: '), (3, 'the data or their split differ')):
        with pytest.raises(UserError, match=message):
            sfl.train(config(rounds=rounds), copied, dataset=digits(shift=1))
    sfl.train(config(rounds=3), copied, dataset=given)
    assert runs.lines(copied) == runs.lines(made / 'longer')


def test_a_command_says_that_the_data_were_given_in_python(copied, capsys):
    for workdir, changes, said in (
        (copied, {}, f'the data of {copied} were given in Python'),
        (copied, {'data.name': 'arrays'}, "data set 'arrays' was given in Python"),
    ):
        words = {**SETTINGS, 'rounds': 3, 'checkpoint_every': 1, **changes}
        options = [f'--config.{key}={value}' for key, value in words.items()]
        assert runs.command('train', runs.DIGITS, f'--workdir={workdir}', *options) == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith('error:')]
        assert said in line
        assert 'sfl.train(config, folder, dataset=…)' in line


def test_what_needs_no_data_works_and_the_rest_says_so(made, tmp_path, capsys):
    run = made / 'run'
    trained = sfl.load_trained(run)
    assert trained.class_names == tuple('abcdefghij')
    images = DIGITS.test_images
    accuracy = (trained.predict(images)['teacher'].argmax(axis=1) == DIGITS.test_labels).mean()
    assert accuracy == pytest.approx(runs.records(run)[-1]['teacher_accuracy'])
    assert sfl.export(run, tmp_path / 'out')['class_names'] == [*'abcdefghij']
    with pytest.raises(UserError, match="'arrays' was given in Python"):
        _ = trained.experiment
    assert runs.command('compare', run) == 0
    assert runs.command('verify', run) == 0
    capsys.readouterr()
    assert runs.command('verify', run, '--rerun=1') == 2
    assert "trained again: data set 'arrays' was given in Python" in capsys.readouterr().out


def test_clients_that_the_data_have_keep_their_images(tmp_path):
    """But for the 40 of the server; read here from the names of the writers. A file of the split has them as well."""
    given = digits(client_ids=WRITERS)
    experiment = sfl.build(config(), given).experiment
    assert experiment.config.federation.num_clients == 6
    split = experiment.partition
    assert len(split.server_index) == 40
    for name, rows in zip(['ann', 'bob', 'cat', 'dan', 'eve', 'fay'], split.client_index, strict=True):
        assert rows.tolist() == [n for n in np.flatnonzero(name == WRITERS) if n not in split.server_index]
    data.save(split, tmp_path / 'split.npz')
    by_file = sfl.build(config(data__partition_file=str(tmp_path / 'split.npz')), given).experiment.partition
    assert by_file.content_hash == split.content_hash


def test_what_contradicts_the_data_is_refused():
    given = digits(client_ids=WRITERS)
    sfl.build(config(federation__num_clients=6), given)
    for changes, dataset, message in (
        ({'federation__num_clients': 7}, given, 'num_clients=7 contradicts the dataset, which has 6'),
        (
            {'federation__partition': 'classes'},
            given,
            "partition='classes' contradicts the dataset, which has 'natural'",
        ),
        ({'federation__num_active': 8}, given, 'num_active=8 is more than federation.num_clients=6'),
        ({'data__name': 'mnist'}, given, "data.name='mnist' contradicts"),
        ({'data__fake': True}, given, 'data.fake=True contradicts'),
        ({'data__image_size': 12}, given, 'image_size=12, .* has images of 8 x 8'),
        ({}, [1, 2], 'dataset is a list; use sfl.data.from_arrays'),
        ({'federation__partition': 'natural'}, None, "partition='natural' needs data that name their clients"),
    ):
        with pytest.raises(UserError, match=message):
            sfl.build(config(**changes), dataset)
