"""Checkpoints come back as they were, and one that does not fit is passed over."""

import itertools
import os
import shutil
from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax.base.errors import UserError
from semisfl_jax.training import checkpoint
from semisfl_jax.training.checkpoint import Identity

OWN = Identity(seed=3, config_hash='c', partition_hash='p')
NOTES = {'seconds': 0.1, 'lines': [1, 2]}


class Pair(NamedTuple):
    first: object
    second: object


def tree(seed):
    """Every kind of leaf a run saves, an empty one included."""
    rng = np.random.default_rng(seed)
    weights = jnp.asarray(rng.normal(size=(300, 7)), jnp.float32)
    return {
        'params': Pair(weights, {'b': jnp.asarray(rng.integers(9, size=5), jnp.int32)}),
        'empty': jnp.zeros((0, 3), bool),
        'nothing': {},
        'host': rng.normal(size=(11, 4)),  # float64
        'k_s': np.int64(rng.integers(100)),
    }


def template():
    made = tree(0)
    return made | {'params': jax.eval_shape(lambda: made['params'])}


def assert_equal(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for left, right in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert np.asarray(left).dtype == np.asarray(right).dtype
        np.testing.assert_array_equal(left, right)


def restore(folder, like=None, identity=OWN):
    (restored,) = checkpoint.restore([folder], like or template(), [identity])
    return restored


def save(folder, kept, trees):
    for number, saved in trees.items():
        checkpoint.save(folder, number, saved, OWN, NOTES, kept)
    return folder


@pytest.fixture
def folder(tmp_path):
    """Checkpoints of the rounds 2 and 4."""
    return save(tmp_path / 'checkpoints', 2, {number: tree(number) for number in (1, 2, 4)})


def test_the_newest_checkpoint_comes_back(folder, tmp_path):
    """Beside odd names, an empty folder, a file, and a save cut short."""
    assert checkpoint.restore([tmp_path / 'nowhere'], template(), [OWN]) is None
    for name in ('²', '٣', '-1', '0', '1_0', '007/a', '9', '5.orbax-checkpoint-tmp/a'):
        (folder / name).mkdir(parents=True)
    (folder / '8').write_text('a file')
    assert checkpoint.rounds_saved(folder) == [2, 4]
    restored = restore(folder)
    assert (restored.round, restored.notes) == (4, NOTES)
    assert_equal(restored.state, tree(4))
    checkpoint.remove_after(folder, 4)
    assert not {'9', '5.orbax-checkpoint-tmp'} & {path.name for path in folder.iterdir()}
    save(folder, 2, {5: tree(5)})
    assert checkpoint.rounds_saved(folder) == [4, 5]


def test_a_full_disk_is_one_line(folder, monkeypatch):
    """As tensorstore says it, which is not an OSError."""
    full = ValueError('RESOURCE_EXHAUSTED: Error writing "x": No space left on device')
    monkeypatch.setattr(checkpoint.ocp.Checkpointer, 'save', mock.Mock(side_effect=full))
    with pytest.raises(UserError, match=r'round 5 .*checkpoints .*no space left'):
        save(folder, 2, {5: tree(5)})
    assert checkpoint.rounds_saved(folder) == [2, 4]


def flip(path):
    """A bit of a weight, which Orbax reads without a word."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def warning(caplog):
    """Ours, beside which Orbax may have some about reads that it gave up."""
    (message,) = [record.getMessage() for record in caplog.records if record.name == 'semisfl_jax']
    return message


@pytest.mark.parametrize(
    ('pattern', 'damage'),
    [
        *itertools.product(('state/d/*', 'about/metadata'), (truncate, os.remove)),
        ('state/manifest.ocdbt', truncate),
        ('state', shutil.rmtree),
        ('state/ocdbt.process_0/d/*', flip),
    ],
)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(folder, caplog, pattern, damage):
    damage(max((folder / '4').glob(pattern), key=lambda path: path.stat().st_size))
    restored = restore(folder)
    assert restored.round == 2
    assert_equal(restored.state, tree(2))
    assert f'{folder}/4: ' in warning(caplog)
    checkpoint.remove_after(folder, 2)  # the run goes on and reaches round 4 again
    save(folder, 2, {4: tree(5)})
    assert_equal(restore(folder).state, tree(5))


def test_a_checkpoint_of_another_run_or_shape_is_refused(folder):
    wrong = template()
    wrong['params'] = wrong['params']._replace(first=jax.ShapeDtypeStruct((7, 300), jnp.float32))
    for like, identity, reason in (
        (template(), OWN._replace(seed=4), 'seed=3, not 4'),
        (template(), OWN._replace(config_hash='d'), 'config_hash=c, not d'),
        (template(), OWN._replace(partition_hash='q'), 'partition_hash=p, not q'),
        (wrong, OWN, 'leaves='),
    ):
        with pytest.raises(UserError, match=f'/4: .*{reason}.*/2: .*{reason}'):
            restore(folder, like, identity)
        with pytest.raises(UserError, match=reason):
            checkpoint.read(folder, 2, like, identity)
    assert checkpoint.rounds_saved(folder) == [2, 4]


def test_other_versions_of_packages_are_named_and_taken(folder, monkeypatch, caplog):
    monkeypatch.setattr(checkpoint, 'installed_versions', lambda: {'jax': '99.0'})
    assert restore(folder).round == 4
    assert f'jax {jax.__version__} (now 99.0)' in warning(caplog)


@pytest.fixture
def folders(tmp_path):
    """Two trials: the first one was saved after the rounds 2, 4 and 6, the second one was killed before its third."""
    first, second = ({number: tree(number + index) for number in (2, 4, 6)[: 3 - index]} for index in (0, 1))
    return [save(tmp_path / 'a', 3, first), save(tmp_path / 'b', 3, second)]


def test_of_several_folders_the_newest_of_each_that_is_whole(folders, caplog):
    for newest in (4, 2):
        first, second = checkpoint.restore(folders, template(), [OWN, OWN])
        assert (first.round, second.round) == (6, newest)
        assert_equal(first.state, tree(6))
        assert_equal(second.state, tree(newest + 1))
        if newest == 4:
            truncate(next((folders[1] / '4').glob('state/d/*')))
    assert f'{folders[1]}/4: ' in warning(caplog)
    checkpoint.remove_after(folders[0], 4)
    assert checkpoint.rounds_saved(folders[0]) == [2, 4]


def test_of_several_folders_one_without_any(folders, tmp_path):
    assert checkpoint.restore([*folders, tmp_path / 'empty'], template(), [OWN] * 3) is None
    for number in (2, 4):
        truncate(next((folders[1] / str(number)).glob('state/d/*')))
    with pytest.raises(UserError, match=rf'no checkpoint in {folders[1]} .*/4: .*/2: '):
        checkpoint.restore(folders, template(), [OWN, OWN])
