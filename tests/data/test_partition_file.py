"""Partitions in files: what a file gives back, and every file that is refused."""

import dataclasses

import numpy as np
import pytest

from semisfl_jax import data
from semisfl_jax.base.errors import UserError
from tests.helpers import toy_scenes
from tests.helpers.partitions import SKEWED, config_of, dataset_of, rewrite


@pytest.fixture
def saved(tmp_path):
    """A data set, its configuration, its partition and the file."""
    dataset, config = dataset_of(SKEWED), config_of(partition='dirichlet', client_labels=40)
    made = data.make_partition(dataset, config)
    data.save(made, tmp_path / 'partition.npz')
    return dataset, config, made, tmp_path / 'partition.npz'


def test_a_file_gives_back_the_partition(saved, tmp_path):
    dataset, config, made, path = saved
    read = data.load_for(path, dataset, config)
    assert (read.content_hash, read.settings) == (made.content_hash, made.settings)
    for mine, yours in zip(
        (made.server_index, *made.client_index, *made.client_labeled_index),
        (read.server_index, *read.client_index, *read.client_labeled_index),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, yours)
    data.save(read, tmp_path / 'again.npz')
    assert (tmp_path / 'again.npz').read_bytes() == path.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ['again.npz', 'partition.npz']


def test_a_file_with_other_settings_says_which(tmp_path, caplog):
    dataset = dataset_of([500] * 4)
    changes = {'num_labeled': 200, 'client_labels': 200, 'num_clients': 8, 'k_s': 0, 'mu': 1, 'num_unlabeled': 800}
    changes |= {'partition': 'dirichlet_class', 'labeled_partition': 'classes', 'alpha': 0.5, 'mismatch': 0.5}
    ignored = {'client_labels': 40, 'mu': 0, 'ignored_labeled': 'dropped'}
    for given, other, named in (
        (changes, {}, []),
        (changes, {'mismatch': 0.0, 'min_images': 5}, ['min_images', 'mismatch']),
        (changes, {'num_unlabeled': 0}, ['num_unlabeled']),
        (changes, {'labeled_partition': 'dirichlet', 'labeled_alpha': 1.0}, ['labeled_alpha', 'labeled_partition']),
        (ignored, {'ignored_labeled': 'unlabeled'}, ['ignored_labeled']),
    ):
        made = data.make_partition(dataset, config_of(**given))
        data.save(made, tmp_path / 'p.npz')
        caplog.clear()
        read = data.load_for(tmp_path / 'p.npz', dataset, config_of(**given | other))
        assert (read.content_hash, read.settings) == (made.content_hash, made.settings)
        assert [record.getMessage().split('=')[0] for record in caplog.records] == named


# --- refused


def test_a_file_of_zeros_is_not_unpacked(saved):
    """They compress to a thousandth: 1 MB would take 1 GB of memory before anything is checked."""
    dataset, config, _, path = saved
    np.savez_compressed(path, server_index=np.zeros(2**22, np.int32))
    with pytest.raises(UserError, match='KiB would unpack to 16 MiB'):
        data.load_for(path, dataset, config)


@pytest.mark.parametrize(
    'write',
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b''),
        lambda path: path.write_bytes(path.read_bytes()[:100]),
        lambda path: path.write_bytes(path.read_bytes()[:-20]),
        lambda path: np.savez(path, rows=np.arange(3)),
        lambda path: np.savez(path, rows=np.array([{}], object)),
        lambda path: rewrite(path, server_index=np.arange(3.0)),
        lambda path: rewrite(path, server_index=np.arange(60)),
    ],
)
def test_a_damaged_file_and_one_of_another_kind_are_refused(saved, write):
    dataset, config, _, path = saved
    write(path)
    with pytest.raises(UserError, match=r'partition\.npz'):
        data.load_for(path, dataset, config)


def test_a_file_for_something_else_is_refused(saved):
    _, config, _, path = saved
    with pytest.raises(UserError, match=r'c0ffee.*0ther'):
        data.load_for(path, dataset_of(SKEWED, checksum='0ther'), config)
    with pytest.raises(UserError, match='num_clients=7'):
        data.load_for(path, dataset_of(SKEWED), config_of(num_clients=8))


@pytest.mark.parametrize(
    ('part', 'message'),
    [
        ({'server_index': [0, 1, 700]}, 'rows that the data set does not have'),
        ({'server_index': [0, 1, 3]}, 'twice'),
        ({'server_index': [0, 705]}, 'unknown'),
        ({'server_index': []}, r'k_s=100'),
        ({'client_index': [[3, 4], []]}, 'a client without images'),
        ({'client_labeled_index': [[]]}, 'labeled rows for every client'),
    ],
)
def test_a_file_made_elsewhere_is_checked(tmp_path, part, message, caplog):
    """One without faults is used as it is, without settings to warn of."""
    dataset = dataset_of(SKEWED, unknown=10 if part.get('server_index') == [0, 705] else 0)
    config = config_of(num_clients=2, num_active=1)
    for changes in ({}, part):
        rows = {'server_index': [[0, 1, 2]], 'client_index': [[3, 4], [5]], 'client_labeled_index': [[], []]}
        rows |= {name: [part] if name == 'server_index' else part for name, part in changes.items()}
        server, clients, labeled = (tuple(np.array(part, np.int32) for part in parts) for parts in rows.values())
        made = data.Partition(dataset.name, dataset.checksum, {}, *server, clients, labeled)
        data.save(made, tmp_path / 'p.npz')
        if not changes:
            assert data.load_for(tmp_path / 'p.npz', dataset, config).client_index[1].tolist() == [5]
            assert not caplog.records
    with pytest.raises(UserError, match=message):
        data.load_for(tmp_path / 'p.npz', dataset, config)
    if not rows['server_index']:
        data.load_for(tmp_path / 'p.npz', dataset, config_of(num_clients=2, num_active=1, k_s=0))


def test_labels_at_the_clients_are_used_or_the_file_is_refused(saved, tmp_path, caplog):
    dataset, _, made, path = saved
    for refused in ({}, {'client_labels': -1}):
        with pytest.raises(UserError, match=r'config\.data\.client_labels=40'):
            data.load_for(path, dataset, config_of(partition='dirichlet', **refused))
    for accepted in ({'client_labels': 40}, {'client_labels': 40, 'mu': 0}):
        data.load_for(path, dataset, config_of(partition='dirichlet', **accepted))
    (warning,) = [text for text in caplog.messages if 'label' in text]
    assert 'federation.mu=0: the 40 labeled images' in warning
    data.save(dataclasses.replace(made, client_labeled_index=()), tmp_path / 'none.npz')
    with pytest.raises(UserError, match=r'config\.data\.client_labels=0'):
        data.load_for(tmp_path / 'none.npz', dataset, config_of(partition='dirichlet', client_labels=40))


def test_a_folder_that_cannot_be_written_is_named(saved, tmp_path):
    with pytest.raises(UserError, match=r'partition\.npz'):
        data.save(saved[2], saved[3] / 'p.npz')


def test_tasks_share_rows_in_a_file_of_their_own(tmp_path):
    dataset, path = toy_scenes.load(), tmp_path / 'p.npz'
    given = {'tasks': toy_scenes.TASKS, 'num_clients': 4, 'num_active': 2, 'client_labels': -1, 'k_s': 0}
    made = data.make_partition(dataset, config_of(**given))
    data.save(made, path)
    assert data.load_for(path, dataset, config_of(**given)).content_hash == made.content_hash
    with pytest.raises(UserError, match='tasks semseg, depth'):
        data.load_for(path, dataset, config_of(**given | {'tasks': ('depth',)}))
