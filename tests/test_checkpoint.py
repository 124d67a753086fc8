"""Checkpoints come back as they were, and a damaged one is found out."""

import itertools
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import checkpoint
from semisfl_jax.errors import UserError


class Pair(NamedTuple):
    first: object
    second: object


def tree(seed):
    """Every kind of leaf a run saves, an empty one included."""
    rng = np.random.default_rng(seed)
    return {
        'params': Pair(
            jnp.asarray(rng.normal(size=(300, 7)), jnp.float32), {'b': jnp.asarray(rng.integers(9, size=5), jnp.int32)}
        ),
        'flags': jnp.asarray(rng.random(4) < 0.5),
        'empty': jnp.zeros((0, 3)),
        'nothing': {},
        'host': rng.normal(size=(11, 4)),  # float64
        'k_s': np.int64(rng.integers(100)),
        'zero': np.zeros((), np.int64),
    }


def template(seed=0):
    made = tree(seed)
    return {
        **made,
        'params': jax.eval_shape(lambda: made['params']),
        'empty': jax.ShapeDtypeStruct((0, 3), jnp.float32),
    }


def assert_equal(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for left, right in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.asarray(left).dtype == np.asarray(right).dtype
        np.testing.assert_array_equal(left, right)


@pytest.fixture
def folder(tmp_path):
    """Checkpoints of the rounds 2 and 4."""
    folder = tmp_path / 'checkpoints'
    manager = checkpoint.open_manager(folder, 2)
    for number in (1, 2, 4):
        checkpoint.save(manager, number, tree(number))
    manager.close()
    return folder


def test_the_newest_checkpoint_comes_back(folder):
    assert checkpoint.rounds_saved(folder) == [2, 4]
    restored = checkpoint.restore(folder, template())
    assert restored.round == 4
    assert_equal(restored.state, tree(4))


def test_no_checkpoint_is_no_error(tmp_path):
    assert checkpoint.restore(tmp_path / 'nowhere', template()) is None
    (tmp_path / '7.orbax-checkpoint-tmp-0').mkdir()  # a save cut short
    assert checkpoint.restore(tmp_path, template()) is None


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ('pattern', 'damage'),
    [
        *itertools.product(('default/d/*', 'default/manifest.ocdbt', 'default/_METADATA'), (truncate, flip, os.remove)),
        ('SHA256', truncate),
        ('SHA256', flip),
    ],
)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(folder, capfd, pattern, damage):
    damage(next((folder / '4').glob(pattern)))
    restored = checkpoint.restore(folder, template())
    assert restored.round == 2
    assert_equal(restored.state, tree(2))
    errors = capfd.readouterr().err
    assert errors.startswith('warning: the checkpoint of round 4 is damaged')
    assert errors.count('\n') == 1
    assert sorted(path.name for path in folder.iterdir()) == ['2', 'damaged-4']

    manager = checkpoint.open_manager(folder, 2)  # the run goes on and reaches round 4 again
    checkpoint.save(manager, 4, tree(5))
    manager.close()
    assert_equal(checkpoint.restore(folder, template()).state, tree(5))


def test_a_checkpoint_without_a_digest_is_read_all_the_same(folder, capfd):
    """Its process was killed right after saving it."""
    (folder / '4' / 'SHA256').unlink()
    restored = checkpoint.restore(folder, template())
    assert restored.round == 4
    assert_equal(restored.state, tree(4))
    assert not capfd.readouterr().err


def test_without_a_digest_damage_is_still_noticed(folder):
    (folder / '4' / 'SHA256').unlink()
    flip(next((folder / '4').glob('default/d/*')))
    assert checkpoint.restore(folder, template()).round == 2


def test_all_damaged_is_an_error_and_nothing_is_touched(folder):
    for number in ('2', '4'):
        flip(next((folder / number).glob('default/d/*')))
    before = {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()}
    with pytest.raises(UserError, match=r'no checkpoint in .*round 4: .*; round 2: '):
        checkpoint.restore(folder, template())
    assert before == {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()}


@pytest.mark.parametrize('shape', [(300, 8), (7, 300)])
def test_a_state_of_another_shape_is_refused(folder, shape):
    wrong = template()
    wrong['params'] = wrong['params']._replace(first=jax.ShapeDtypeStruct(shape, jnp.float32))
    with pytest.raises(UserError, match='no checkpoint'):
        checkpoint.restore(folder, wrong)


def test_a_copied_folder_is_as_good_as_the_original(folder, tmp_path):
    shutil.copytree(folder, tmp_path / 'copy')
    assert checkpoint.restore(Path(tmp_path / 'copy'), template()).round == 4


@pytest.fixture
def folders(tmp_path):
    """Two trials: the first one was saved after the rounds 2, 4 and 6, the second one was killed before its third."""
    made = []
    for name, rounds in (('a', (2, 4, 6)), ('b', (2, 4))):
        manager = checkpoint.open_manager(tmp_path / name, 3)
        for number in rounds:
            checkpoint.save(manager, number, tree(number + len(made)))
        manager.close()
        made.append(tmp_path / name)
    return made


def test_of_several_folders_the_newest_round_in_all(folders):
    restored = checkpoint.restore_all(folders, template())
    assert restored.round == 4
    for state, seed in zip(restored.state, (4, 5), strict=True):
        assert_equal(state, tree(seed))
    assert checkpoint.rounds_saved(folders[0]) == [2, 4, 6]
    checkpoint.cut_back(folders[0], 4)
    assert checkpoint.rounds_saved(folders[0]) == [2, 4]


def test_of_several_folders_a_damaged_checkpoint_takes_all_further_back(folders, capfd):
    flip(next((folders[1] / '4').glob('default/d/*')))
    restored = checkpoint.restore_all(folders, template())
    assert restored.round == 2
    assert_equal(restored.state[1], tree(3))
    assert (
        f'round 4 is damaged (its files have changed since they were written) in {folders[1]}' in capfd.readouterr().err
    )
    assert sorted(path.name for path in folders[1].iterdir()) == ['2', 'damaged-4']


def test_several_folders_without_a_common_round(folders, tmp_path):
    assert checkpoint.restore_all([*folders, tmp_path / 'empty'], template()) is None
    checkpoint.cut_back(folders[1], 2)
    shutil.rmtree(folders[0] / '2')
    with pytest.raises(UserError, match=r'no round has a checkpoint of every trial .*a: 4, 6; .*b: 2'):
        checkpoint.restore_all(folders, template())
