"""Validation images: held out of the training set, the same in all that is compared, in place of test images."""

import dataclasses
import json

import numpy as np
import pytest

from semisfl_jax import config as config_lib
from semisfl_jax import data, tasks
from semisfl_jax.base.errors import UserError
from semisfl_jax.config import keys
from semisfl_jax.data import sources
from semisfl_jax.lab import compare
from semisfl_jax.lab.plots import collect
from semisfl_jax.runs import group, read_run
from semisfl_jax.training import load
from tests.helpers import runs, toy_scenes
from tests.helpers.partitions import SKEWED, class_counts, config_of, dataset_of, rewrite

HELD = {'data__num_validation': 100, 'algorithm': 'supervised_only', 'rounds': 2, 'diagnostics_every': 2}
OF_VALIDATION = {**HELD, 'data__eval_split': 'validation'}


def held_by(partition):
    return np.concatenate([partition.server_index, *partition.client_index, *partition.client_labeled_index])


def test_held_out_images_are_stratified_and_nobody_has_them():
    dataset = dataset_of(SKEWED, unknown=30)
    made = data.make_partition(dataset, config_of(num_validation=90, client_labels=40))
    shares = 90 * np.array(SKEWED) / sum(SKEWED)
    counts = class_counts(dataset.train_labels, made.validation_index, len(SKEWED))
    assert (abs(counts - shares) < 1).all()
    assert counts.sum() == len(made.validation_index) == 90  # none of unknown class
    rest = np.setdiff1d(np.arange(len(dataset.train_labels)), made.validation_index)
    np.testing.assert_array_equal(np.sort(held_by(made)), rest)  # all others, each once
    federation = data.build_federations(dataset, [made], 'device')[0]
    assert len(federation.client_images) + len(federation.server_images) == len(rest)


def test_the_draw_is_by_the_seed_of_the_partition_and_by_nothing_else():
    def held(**changes):
        made = data.make_partition(dataset_of(SKEWED), config_of(num_validation=50, **changes))
        return made.validation_index.tolist()

    others = {'num_labeled': 60, 'client_labels': 20, 'num_clients': 4, 'partition': 'dirichlet'}
    assert held(seed=3) == held(seed=8, partition_seed=3) == held(seed=3, eval_split='validation', **others)
    assert held(seed=3) != held(seed=4)


def test_more_than_are_there_or_than_leave_enough():
    for number, named in ((1_000, 'num_validation=1000'), (650, 'num_labeled=100'), (597, 'num_clients=7')):
        with pytest.raises(UserError, match=named):
            data.make_partition(dataset_of(SKEWED), config_of(num_validation=number))


def test_a_partition_file_has_the_validation_images(tmp_path):
    dataset, config = dataset_of(SKEWED), config_of(num_validation=50, eval_split='validation')
    made, none = (data.make_partition(dataset, each) for each in (config, config_of()))
    overlap = np.sort(np.append(held_by(made)[:1], made.validation_index[1:]))
    twice = dataclasses.replace(made, validation_index=overlap)
    for name, partition in {'whole': made, 'overlap': twice, 'damaged': made, 'none': none}.items():
        data.save(partition, tmp_path / f'{name}.npz')
    same = data.load_for(tmp_path / 'whole.npz', dataset, config)
    assert same.content_hash == made.content_hash
    np.testing.assert_array_equal(same.validation_index, made.validation_index)
    rewrite(tmp_path / 'damaged.npz', validation_index=made.validation_index[:-1])
    of_config = {'whole': 'num_validation=50'}, {'none': 'num_validation=0', 'overlap': 'overlap', 'damaged': 'damaged'}
    for wanted, files in zip((config_of(), config), of_config, strict=True):
        for name, named in files.items():
            with pytest.raises(UserError, match=named):
                data.load_for(tmp_path / f'{name}.npz', dataset, wanted)


def test_dense_tasks_share_them():
    dataset = toy_scenes.load()
    config = config_of(num_validation=9, tasks=toy_scenes.TASKS, num_clients=4, num_active=2, client_labels=-1, k_s=0)
    held = data.make_partition(dataset, config).validation_index
    rest = np.unique(held_by(data.make_partition(dataset, config)))
    np.testing.assert_array_equal(rest, np.setdiff1d(np.arange(48), held))
    seen = data.evaluated(dataset, held, 'validation', toy_scenes.TASKS)
    np.testing.assert_array_equal(seen.targets['depth'].test, dataset.targets['depth'].train[held])


class Forbidden(np.ndarray):
    """Test images that nothing may read."""

    def __getitem__(self, rows):
        raise AssertionError('a test image was read')

    def __array__(self, *arguments, **options):
        raise AssertionError('a test image was read')


@pytest.fixture(scope='module')
def scored(tmp_path_factory):
    """A run on validation images, which touches no test image, and one that is scored on these instead."""
    folder, true = tmp_path_factory.mktemp('scored'), sources.load

    def guarded(*arguments):
        dataset = true(*arguments)
        images = np.full_like(dataset.test_images, 255).view(Forbidden)
        return dataclasses.replace(dataset, test_images=images, test_labels=np.full_like(dataset.test_labels, -7))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, 'load', guarded)
        assert runs.run(folder / 'validation', **OF_VALIDATION) == 0
        with pytest.raises(AssertionError, match='a test image was read'):
            runs.run(folder / 'test', **HELD)
    assert runs.run(folder / 'test', **HELD) == 0
    return folder


@pytest.mark.slow
def test_a_setting_is_searched_and_trained_on_the_same_images(scored):
    """Only scores differ, and they are those of the state on images that it was not trained on."""
    for ours, theirs in zip(*(runs.records(scored / name) for name in ('validation', 'test')), strict=True):
        assert ours.pop('validation') is True
        assert ours['student_accuracy'] != theirs['student_accuracy']
        for name in [name for name in theirs if name in runs.TIMES or tasks.split_key(name)]:
            del ours[name], theirs[name]
        assert ours == theirs
    parts = [data.load_partition(scored / name / 'partition.npz') for name in ('validation', 'test')]
    assert parts[0].content_hash == parts[1].content_hash
    trial = load.experiment(scored / 'validation')
    _, state = load.state(scored / 'validation', trial)
    held = trial.partition.validation_index
    np.testing.assert_array_equal(trial.dataset.test_images, trial.dataset.train_images[held])
    labels = trial.dataset.train_labels[held]
    logits = np.asarray(trial.algorithm.predict(state, trial.dataset.train_images[held])['student'])
    right = np.mean(logits.argmax(axis=1) == labels)
    assert runs.records(scored / 'validation')[-1]['student_accuracy'] == pytest.approx(right)
    (counts,) = collect.history(read_run(scored / 'validation'), last=1)
    np.testing.assert_array_equal(counts['student_test'].sum(axis=1), np.bincount(labels))
    np.testing.assert_array_equal(collect.feature_spaces(scored / 'validation', most=20)[0][2], labels[:20])


@pytest.mark.slow
def test_every_output_says_validation(scored, capsys):
    assert runs.run(scored / 'validation', **OF_VALIDATION) == 0  # restored: finished before
    assert 'student validation accuracy: ' in capsys.readouterr().out
    files = (scored / name / 'summary.json' for name in ('validation', 'test'))
    assert [json.loads(file.read_text()).get('eval_split') for file in files] == ['validation', None]
    both = [read_run(scored / name) for name in ('validation', 'test')]
    of_seeds = compare.side_by_side([run._replace(seed=seed) for run in both for seed in (0, 1)], 1)
    assert {'Validation accuracy (%)', 'Test accuracy (%)'} < {*of_seeds.tables[0].header}
    assert not of_seeds.differences
    assert list(group(both)) == ['data.eval_split=validation', 'data.eval_split=test']
    with pytest.raises(UserError, match='validation'):
        collect.eval_split(group(both))


def test_runs_of_earlier_versions_are_the_same_experiments(tmp_path):
    """A folder from before a key came: the name that the configuration gives it, and its run."""
    assert runs.run(tmp_path, algorithm='supervised_only', rounds=2) == 0
    config = json.loads((tmp_path / 'config.json').read_text())
    assert keys.added()['data.eval_split'] == 'test'
    for key in keys.added():
        group_name, _, name = key.rpartition('.')
        del (config[group_name] if group_name else config)[name]
    (tmp_path / 'config.json').write_text(json.dumps(config))
    resolved = config_lib.resolve(runs.config(algorithm='supervised_only', rounds=2))
    assert not config_lib.differences(resolved, config)
    assert config_lib.identity_hash(load.config(tmp_path)) == config_lib.identity_hash(resolved)
    assert runs.run(tmp_path, algorithm='supervised_only', rounds=4) == 0


@pytest.mark.parametrize('how', ['shared', 'disjoint'])
def test_images_without_a_truth_go_to_no_client_of_the_task(how):
    """A third of the images have no depth."""
    made = toy_scenes.load()
    maps = made.targets['depth'].train.copy()
    maps[::3] = tasks.IGNORED
    targets = {**made.targets, 'depth': made.targets['depth']._replace(train=maps)}
    clients = {'num_clients': 4, 'num_active': 2, 'client_labels': -1, 'k_s': 0}
    config = config_of(tasks=toy_scenes.TASKS, task_images=how, **clients)
    split = data.make_partition(dataclasses.replace(made, targets=targets), config)
    held, known = np.concatenate(split.client_index[1::2]), np.flatnonzero(np.arange(48) % 3)
    assert set(held) <= set(known)
    assert how == 'disjoint' or sorted(held) == known.tolist()
