"""Partitions in files: what a file gives back, and every file that is refused."""

import dataclasses

import numpy as np
import pytest

from semisfl_jax import data
from semisfl_jax.core.errors import UserError
from tests.partitions import SKEWED, config_of, dataset_of, rewrite


def test_a_file_without_images_for_the_server_is_refused_where_it_needs_some(tmp_path):
    dataset, config = dataset_of(SKEWED), config_of(client_labels=-1, k_s=0)
    made = data.make_partition(dataset, config)
    data.save(made, tmp_path / 'all.npz')
    assert data.load_for(tmp_path / 'all.npz', dataset, config).content_hash == made.content_hash
    with pytest.raises(UserError, match=r'leaves the server without images, but config\.k_s=100 trains on some'):
        data.load_for(tmp_path / 'all.npz', dataset, config_of())


@pytest.mark.parametrize('changes', [{'ignored_labeled': 'dropped'}, {'ignored_labeled': 'unlabeled'}])
def test_a_file_says_what_became_of_ignored_labels(tmp_path, changes, caplog):
    dataset, config = dataset_of(SKEWED), config_of(client_labels=40, mu=0, **changes)
    made = data.make_partition(dataset, config)
    data.save(made, tmp_path / 'p.npz')
    read = data.load_for(tmp_path / 'p.npz', dataset, config)
    assert (read.content_hash, read.settings['ignored_labeled']) == (made.content_hash, changes['ignored_labeled'])
    assert not caplog.records
    other = {'unlabeled': 'dropped', 'dropped': 'unlabeled'}[changes['ignored_labeled']]
    data.load_for(tmp_path / 'p.npz', dataset, config_of(client_labels=40, mu=0, ignored_labeled=other))
    assert [record.getMessage().split('=')[0] for record in caplog.records] == ['ignored_labeled']


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
    assert read.content_hash == made.content_hash
    assert read.settings == made.settings
    for mine, yours in zip(
        (made.server_index, *made.client_index, *made.client_labeled_index),
        (read.server_index, *read.client_index, *read.client_labeled_index),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, yours)
    data.save(read, tmp_path / 'again.npz')
    assert (tmp_path / 'again.npz').read_bytes() == path.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ['again.npz', 'partition.npz']


def test_an_altered_file_is_refused(saved):
    dataset, config, made, path = saved
    rewrite(path, server_index=np.roll(made.server_index, 1))
    with pytest.raises(UserError, match='damaged'):
        data.load_for(path, dataset, config)


@pytest.mark.parametrize('keep', [0, 100, 0.5, 0.99])
def test_a_file_cut_short_is_refused(saved, keep):
    dataset, config, _, path = saved
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if keep < 1 else keep])
    with pytest.raises(UserError, match=r"partition\.npz' .* damaged .*; export it again \(data\.save\), or "):
        data.load_for(path, dataset, config)


@pytest.mark.parametrize(
    'write',
    [
        lambda path: np.savez(path, rows=np.arange(3)),
        lambda path: np.savez(path, rows=np.array([{}], object)),
        lambda path: rewrite(path, server_index=np.arange(3.0)),
    ],
)
def test_another_kind_of_file_is_refused(saved, write):
    dataset, config, _, path = saved
    write(path)
    with pytest.raises(UserError, match=r'is not a partition file.*export it again'):
        data.load_for(path, dataset, config)


def test_every_flipped_byte_is_noticed_or_harmless(saved):
    dataset, config, made, path = saved
    content = path.read_bytes()
    refused = 0
    for position in range(0, len(content), len(content) // 150):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0x55]) + content[position + 1 :])
        try:
            assert data.load_for(path, dataset, config).content_hash == made.content_hash  # in the zip's padding
        except UserError:
            refused += 1
    assert refused > 75


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (
            lambda d, c: (dataset_of(SKEWED, checksum='0ther'), c),
            "for data set 'toy', checksum c0ffee, not 'toy', 0ther",
        ),
        (lambda d, c: (d, config_of(num_clients=8)), 'for 7 clients'),
    ],
)
def test_a_file_for_something_else_is_refused(saved, change, message):
    dataset, config, _, path = saved
    with pytest.raises(UserError, match=message):
        data.load_for(path, *change(dataset, config))


@pytest.mark.parametrize(
    ('part', 'message'),
    [
        ({'server_index': [0, 1, 700]}, 'rows that the data set does not have'),
        ({'server_index': [-1, 1, 2]}, 'rows that the data set does not have'),
        ({'server_index': [0, 1, 3]}, 'lists a row twice'),
        ({'server_index': [0, 705]}, 'labels are unknown'),
        ({'server_index': []}, 'without images'),
        ({'client_index': [[3, 4], []]}, 'without images'),
    ],
)
def test_a_file_made_elsewhere_is_checked(tmp_path, part, message):
    dataset = dataset_of(SKEWED, unknown=10 if part.get('server_index') == [0, 705] else 0)
    fields = {'server_index': [0, 1, 2], 'client_index': [[3, 4], [5]], 'client_labeled_index': [[], []]} | part
    arrays = {
        key: tuple(np.array(rows, np.int32) for rows in value) if key != 'server_index' else np.array(value, np.int32)
        for key, value in fields.items()
    }
    made = data.Partition(dataset=dataset.name, checksum=dataset.checksum, settings={}, **arrays)
    data.save(made, tmp_path / 'p.npz')
    with pytest.raises(UserError, match=message):
        data.load_for(tmp_path / 'p.npz', dataset, config_of(num_clients=2, num_active=1))


def test_a_split_made_by_hand_is_used_as_it_is(tmp_path, caplog):
    """No settings, no labels at the clients, and nothing to warn of."""
    dataset, config = dataset_of(SKEWED), config_of(num_clients=2, num_active=1)
    rows = {'server_index': np.arange(3), 'client_index': (np.arange(3, 9), np.arange(9, 700))}
    made = data.Partition(dataset=dataset.name, checksum=dataset.checksum, settings={}, **rows)
    assert [len(known) for known in made.client_labeled_index] == [0, 0]
    data.save(made, tmp_path / 'p.npz')
    read = data.load_for(tmp_path / 'p.npz', dataset, config)
    np.testing.assert_array_equal(read.client_index[1], np.arange(9, 700))
    assert not caplog.records


def test_labels_at_the_clients_are_used_or_the_file_is_refused(saved, tmp_path):
    dataset, _, made, path = saved
    with pytest.raises(
        UserError, match=r'has 40 images with labels at the clients: set --config.data.client_labels=40'
    ):
        data.load_for(path, dataset, config_of(partition='dirichlet'))
    for accepted in ({'client_labels': 40}, {'client_labels': 40, 'mu': 0}, {'client_labels': -1}):
        data.load_for(path, dataset, config_of(partition='dirichlet', **accepted))
    data.save(dataclasses.replace(made, client_labeled_index=()), tmp_path / 'none.npz')
    with pytest.raises(UserError, match=r'has no labels at the clients, not 40: set --config\.data\.client_labels=0'):
        data.load_for(tmp_path / 'none.npz', dataset, config_of(partition='dirichlet', client_labels=40))


def test_no_file_and_no_permission_are_user_errors(saved, tmp_path):
    dataset, config, made, _ = saved
    with pytest.raises(UserError, match=r"partition file '.*none\.npz' cannot be read \(No such file"):
        data.load_for(tmp_path / 'none.npz', dataset, config)
    (tmp_path / 'file').write_text('')
    with pytest.raises(UserError, match=r'cannot write .*choose another file'):
        data.save(made, tmp_path / 'file' / 'p.npz')
