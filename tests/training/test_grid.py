"""Cells of a grid, what cannot be one, and the results of a grid in Python."""

import itertools

import numpy as np
import pytest

import semisfl_jax as sfl
from semisfl_jax import config as config_lib
from semisfl_jax.base.errors import Diverged, UserError
from semisfl_jax.training import grid
from tests.helpers import runs
from tests.training.test_loop import CHEAP, check_same, config, equal


def cells(axes, **changes):
    def make(values):
        made = sfl.get_config('digits', values | changes)
        config_lib.check(made)
        return config_lib.resolve(made), []

    return grid.cells(axes, make)


def test_values_are_crossed_and_seeds_share_a_program():
    made = cells({'lr': np.array([0.01, 0.02]), 'data.tasks': [[]], 'k_u': range(1, 3), 'seed': (3, 1)})
    assert [cell.key for cell in made] == [(0.01, (), 1), (0.01, (), 2), (0.02, (), 1), (0.02, (), 2)]
    assert [(cell.config.lr, cell.config.k_u) for cell in made] == [*itertools.product((0.01, 0.02), (1, 2))]
    assert {(cell.config.seed, cell.config.seeds) for cell in made} == {(0, (3, 1))}
    assert made[1].title == 'lr=0.01, data.tasks=(), k_u=2'
    assert [cell.key for cell in cells({'lr': (0.01, 0.02)})] == [0.01, 0.02]
    (alone,) = cells({'seed': (3,)})
    assert (alone.key, alone.config.seed, alone.config.seeds) == ((), 3, ())


@pytest.mark.parametrize(
    ('axes', 'named'),
    [
        ({}, "grid={'lr': "),
        ({'lr': 0.1}, 'lr=0.1; give a list'),
        ({'algorithm': 'semisfl'}, "algorithm='semisfl'; give a list"),
        ({'lr': ()}, 'no value of lr'),
        ({'lr': (0.1, 0.2, 0.1)}, 'lr=0.1 twice'),
        ({'lr': (0.1, -0.2, 0.3)}, 'lr=-0.2: config.lr=-0.2 must be above 0'),
        ({'lr': (0.1, 0.001)}, 'lr=0.001: config.lr_min=0.005 is above lr'),
        ({'lr': (0.1,), 'treshold': (0.9,)}, 'config.threshold'),
        ({'seeds': (0, 1)}, 'seed=0,1,2'),
        ({'rounds': (5, 10)}, 'config.rounds cannot be in a grid'),
        ({'lr_rounds': (0, 150)}, 'lr_rounds=0 and lr_rounds=150 are the same run'),  # of 150 rounds
        ({'lr': range(1, 10**9)}, 'more than 1,000 cells'),
        ({'lr': range(1, 101), 'k_u': range(1, 101)}, 'more than 1,000 cells'),
    ],
)
def test_what_cannot_be_a_grid_is_named_before_anything_is_made(axes, named):
    with pytest.raises(UserError, match=named.replace('(', r'\(')):
        cells(axes)


def test_processes_of_one_run_have_no_grid():
    with pytest.raises(UserError, match='leave out the grid'):
        cells({'lr': (0.1,)}, **{'parallel.coordinator': 'host:1234'})


def test_values_of_papers_are_of_one_method():
    official = sfl.get_config('digits', setting='official', algorithm='semifl')
    for axes in {'algorithm': ('fedmatch', 'semifl')}, {'setting': ('harmonized',)}:
        with pytest.raises(UserError, match='each method has its own values'):
            sfl.train(official, grid=axes)


def result(score):
    scores = dict.fromkeys(('final_accuracy', 'mean_of_last_10_evaluations', 'best_accuracy'), score)
    return sfl.Result({'headline': 'teacher', 'fake': False, 'rounds': 4, 'evaluations': 4, **scores})


def test_a_cell_that_fails_is_named_and_the_others_go_on(caplog, tmp_path):
    def train(cell, home):
        if cell.key == (0.02, 1):
            raise Diverged('loss is nan')
        return result(cell.values['lr'])

    results = grid.run(cells({'lr': (0.01, 0.02), 'k_u': (1, 2)}), None, train)
    assert caplog.messages == ['lr=0.02, k_u=1: loss is nan']
    assert list(results) == [(0.01, 1), (0.01, 2), (0.02, 2)]
    with pytest.raises(Diverged, match='loss is nan'):
        results[0.02, 1]
    with pytest.raises(KeyError):
        results[0.03, 1]
    assert repr(results).splitlines() == [
        '  lr  k_u   final  mean of last   best  rounds',
        '0.01    1   1.00%         1.00%  1.00%       4',
        '0.01    2   1.00%         1.00%  1.00%       4',
        '0.02    1  failed',
        '0.02    2   2.00%         2.00%  2.00%       4',
        'lr=0.02, k_u=1: loss is nan',
    ]
    of_folders = grid.run(cells({'lr': (0.01,)}), tmp_path, train)  # which are read when they are asked for
    assert of_folders[0.01]._homes == [tmp_path / config_lib.run_name(of_folders.cells[0].config, 'digits')]
    with pytest.raises(Diverged):  # nothing to return
        grid.run(cells({'lr': (0.02,), 'k_u': (1,)}), None, train)


@pytest.mark.slow
def test_each_run_of_a_grid_is_the_run_alone(tmp_path):
    reported, axes = [], {'lr': (0.1, 0.02), 'seed': (0, 1)}
    results = sfl.train(CHEAP, tmp_path / 'grid', [reported.append], grid=axes)
    assert [type(event).__name__ for event in reported].count('Described') == 2
    alone = sfl.train(config(algorithm='supervised_only', rounds=2, lr=0.02, seeds=(0, 1)), tmp_path / 'alone')
    folder = tmp_path / 'grid' / config_lib.run_name(results.cells[1].config, 'digits')
    for seed in 'seed_0', 'seed_1':
        assert runs.lines(folder / seed) == runs.lines(tmp_path / 'alone' / seed)
        for name in 'config.json', 'began.json', 'partition.npz':
            assert (folder / seed / name).read_bytes() == (tmp_path / 'alone' / seed / name).read_bytes()
    assert all(equal(ours, theirs) for ours, theirs in zip(results[0.02].state, alone.state, strict=True))
    again = sfl.train(CHEAP, tmp_path / 'grid', [reported.append], grid=axes)
    assert [type(event).__name__ for event in reported].count('Described') == 2
    check_same(again[0.1], results[0.1])
