"""What a run began with, beside its configuration: data, weights, a split, JAX's settings and devices. Whoever goes on
with it, gives its result again or compares it, notices another one, and needs no file but those of the run."""

import errno
import json
import os
import shutil

import filelock
import jax
import numpy as np
import pytest

import semisfl_jax as sfl
from semisfl_jax import data, runs
from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError
from semisfl_jax.lab.studies import engine, plan, results
from tests.data.test_folder import write_folder
from tests.helpers import studies_toy, studies_words
from tests.helpers.runs import lines, write_run


def write_images(root, level=0):
    """Of two classes, dark and light."""
    draw = np.random.default_rng(0)

    def images(k, count):
        return [(100 * k + level + draw.integers(0, 50, (8, 8, 3))).astype(np.uint8) for _ in range(count)]

    of_split = {split: {f'c{k}': images(k, count) for k in (0, 1)} for split, count in (('train', 16), ('test', 4))}
    return write_folder(root, **of_split)


def config(root, **changes):
    small = {'rounds': 2, 'k_s': 2, 'eval_every': 1, 'checkpoint_every': 1, 'model__name': 'mlp200'}
    clients = {'federation__num_clients': 4, 'federation__num_active': 2, 'federation__partition': 'uniform'}
    images = {'data__name': 'folder', 'data__image_folder': str(root / 'images'), 'data__image_size': 8}
    all_ = {'algorithm': 'supervised_only', 'data__num_labeled': 16, **small, **clients, **images, **changes}
    return sfl.get_config('digits', **all_)


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    """A folder with images and with runs of two and of three rounds."""
    root = tmp_path_factory.mktemp('made')
    write_images(root / 'images')
    for name, rounds in (('run', 2), ('longer', 3)):
        sfl.train(config(root, rounds=rounds), root / name)
    return root


@pytest.fixture
def moved(made, tmp_path):
    """A copy of it, while the original is out of reach."""
    shutil.copytree(made, tmp_path / 'moved', symlinks=True)
    made.rename(made.with_name('gone'))
    yield tmp_path / 'moved'
    made.with_name('gone').rename(made)


def edit(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


# --- other contents under the same names


@pytest.mark.parametrize('rounds', [2, 3])
def test_other_images_in_the_same_place_are_not_those_of_the_run(moved, rounds):
    sfl.train(config(moved), moved / 'run')  # done
    shutil.rmtree(moved / 'images')
    write_images(moved / 'images', level=1)
    before = lines(moved / 'run')
    with pytest.raises(UserError, match='data') as caught:
        sfl.train(config(moved, rounds=rounds), moved / 'run')
    assert '\n' not in str(caught.value)
    assert 'choose another --workdir' in str(caught.value)
    assert lines(moved / 'run') == before


@pytest.mark.parametrize(
    ('name', 'other'),
    [('jax_threefry_partitionable', False), ('jax_random_seed_offset', 1), ('jax_default_matmul_precision', 'highest')],
)
@pytest.mark.parametrize('rounds', [2, 3])
def test_other_settings_of_jax_are_not_those_of_the_run(made, name, other, rounds):
    old = getattr(jax.config, name)
    try:
        jax.config.update(name, other)
        with pytest.raises(UserError, match=f'{name}: {old} -> {other}'):
            sfl.train(config(made, rounds=rounds), made / 'run')
    finally:
        jax.config.update(name, old)


def test_another_split_in_a_partition_file_is_not_that_of_a_run_that_is_done(made, tmp_path):
    split = data.load_partition(made / 'run' / 'partition.npz')
    given = config(made, data__partition_file=str(tmp_path / 'split.npz'))
    data.save(split, tmp_path / 'split.npz')
    sfl.train(given, tmp_path / 'run')
    other = data.Partition(split.dataset, split.checksum, {}, split.server_index, split.client_index[::-1])
    data.save(other, tmp_path / 'split.npz')
    with pytest.raises(UserError, match=f'partition: {split.content_hash[:12]} -> {other.content_hash[:12]}'):
        sfl.train(given, tmp_path / 'run')


WITH = {'data.name': 'folder', 'data.image_folder': '/images', 'data.partition_file': '', 'model.weights': ''}


def made_up(seed, began, **settings):
    settings = WITH | {'algorithm': 'semisfl'} | settings
    return runs.Run(f'run{seed}', settings, seed, 'teacher', runs.rows([]), began=began)


@pytest.mark.parametrize(
    ('settings', 'what', 'groups'),
    [
        ({}, 'data', ['checksum of data=a', 'checksum of data=b']),
        ({'model.weights': '/w'}, 'model.weights', ['checksum of model.weights=a', 'checksum of model.weights=b']),
        ({'data.partition_file': '/p'}, 'partition', ['checksum of partition=a', 'checksum of partition=b']),
        ({}, 'partition', ['semisfl']),  # of each seed, its own
        ({}, 'jax_random_seed_offset', ['semisfl']),
    ],
)
def test_seeds_that_read_something_else_under_one_name_are_no_group(settings, what, groups):
    members = [made_up(0, {what: 'a'}, **settings), made_up(1, {what: 'b'}, **settings)]
    assert list(runs.group(members)) == groups
    assert list(runs.group([made_up(0, {}, **settings), members[1]])) == ['semisfl']  # unknown of one
    others = [members[0], made_up(1, {what: 'b'}, **settings | {key: '/other' for key in WITH if settings.get(key)})]
    if not settings:
        others[1].settings['data.name'] = 'cifar10'  # of which everybody knows that the images are others
    assert not any('checksum' in label for label in runs.group(others))


@pytest.fixture
def study(tmp_path):
    """One row of a study, its run made up, of three seeds."""
    row = studies_toy.study().part(['SemiSFL'], ['Dir(1)'])
    (job,) = studies_words.jobs(row)
    folder = tmp_path / plan.RUNS / job.name
    folder.mkdir(parents=True)
    for seed in job.seeds:
        home = write_run(folder / f'seed_{seed}', seed, 'semisfl', {'teacher_accuracy': [0.5] * job.rounds})
        paths = {'data': {'name': 'digits', 'image_folder': '', 'partition_file': ''}, 'model': {'weights': ''}}
        edit(home / 'config.json', **paths)
        file_io.write_json(home / 'began.json', file_io.seal({'data': 'a'}))
        summary = json.loads((home / 'summary.json').read_text())
        del summary['config_hash'], summary['sha256']
        file_io.write_json(home / 'summary.json', file_io.seal(summary))
    shutil.copy(home / 'summary.json', folder)
    return row


def test_a_study_tells_of_seeds_with_other_data_and_of_data_that_have_changed(study, tmp_path, monkeypatch):
    monkeypatch.setattr(data, 'checksum_of', lambda options: {'digits': 'a'}[options.name])
    made = plan.make(study, {})

    def result():
        return next(iter(results.fill(made, results.read_jobs(made, tmp_path, {})).values()))

    runs.check_inputs([tmp_path / plan.RUNS / made.jobs[0].name])
    assert len(result().runs) == 3
    (began,) = tmp_path.glob('**/seed_2/began.json')
    file_io.write_json(began, file_io.seal({'data': 'b'}))
    with pytest.raises(UserError, match=r'seed_2 .*data: b -> a'):
        engine.run(study, {}, str(tmp_path))
    assert (result().runs, result().missing) == ({}, 'its seeds began with different contents of data')


# --- moved, without the files that it read, on fewer devices, where nobody may write


def test_moved_with_its_images_a_run_goes_on(moved):
    sfl.train(config(moved, rounds=3), moved / 'run')
    assert lines(moved / 'run') == lines(moved / 'longer')


def test_a_model_is_loaded_without_the_data(moved):
    images = np.full((3, 8, 8, 3), 90, np.uint8)
    trained = sfl.load_trained(moved / 'run')
    with pytest.raises(UserError, match='images'):
        _ = trained.experiment
    edit(moved / 'run' / 'config.json', data=config(moved).data.to_dict())
    expected = trained.experiment.algorithm.predict(trained.state, images)['student']
    np.testing.assert_allclose(trained.predict(images)['student'], expected, rtol=1e-5, atol=1e-6)
    assert trained.class_names == ('c0', 'c1')
    assert json.loads((moved / 'run' / 'began.json').read_text())['images']['outline']['class_names'] == ['c0', 'c1']
    (moved / 'run' / 'began.json').unlink()
    with pytest.raises(UserError, match=r'began\.json'):
        sfl.load_trained(moved / 'run')


def test_fewer_devices_are_a_word_and_no_other_run(made, tmp_path, caplog):
    run = shutil.copytree(made / 'run', tmp_path / 'run')
    edit(run / 'config.json', parallel=config(made, parallel__devices=2).parallel.to_dict())
    began = json.loads((run / 'began.json').read_text()) | {'devices': 2}
    file_io.write_json(run / 'began.json', file_io.seal({key: began[key] for key in began.keys() - {'sha256'}}))
    sfl.train(config(made, rounds=3, parallel__devices=1), run)
    assert lines(run) == lines(made / 'longer')
    (message,) = [record.getMessage() for record in caplog.records if 'devices' in record.getMessage()]
    assert 'began on 2 devices and resumes on 1: sums are taken in a different order' in message


@pytest.fixture
def read_only(monkeypatch):
    """All of the disk, for a while."""

    def refuse(lock, *_, **__):
        raise OSError(errno.EROFS, 'Read-only file system', lock.lock_file)

    access = os.access
    monkeypatch.setattr(filelock.FileLock, 'acquire', refuse)
    monkeypatch.setattr(os, 'access', lambda path, mode: not mode & os.W_OK and access(path, mode))


@pytest.mark.usefixtures('read_only')
def test_a_run_that_is_done_gives_its_result_where_nobody_may_write(made):
    result = sfl.train(config(made), made / 'run')
    assert result.summary['rounds'] == result.state.round == 2
    with pytest.raises(UserError, match=r'cannot write .*Read-only file system'):
        sfl.train(config(made, rounds=3), made / 'run')


def test_a_study_that_is_done_gives_its_report_where_nobody_may_write(study, tmp_path, request, monkeypatch):
    monkeypatch.setattr(data, 'checksum_of', lambda _: 'a')
    folder = engine.run(study, {}, str(tmp_path))
    request.getfixturevalue('read_only')
    said = []
    assert engine.run(study, {}, str(tmp_path), show=said.append) == folder
    assert said[1:] == [f'report in {folder}, complete and read-only']
    next(tmp_path.glob('**/seed_2/summary.json')).parents[1].joinpath('summary.json').unlink()
    with pytest.raises(UserError, match='Read-only file system'):
        engine.run(study, {}, str(tmp_path))
