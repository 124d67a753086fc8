"""Cells of a grid, what cannot be one, and the results of a grid in Python."""

import itertools
from functools import partial

import jax
import numpy as np
import pytest

import semisfl_jax as sfl
from semisfl_jax import config as config_lib
from semisfl_jax.base.errors import Diverged, UserError
from semisfl_jax.training import driver, experiment, grid, memory, shapes
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


def run(cells, folder, train):
    return grid.run(cells, folder, (), (), train)


def alone(**axes):
    """Cells that are a program each: K_u shapes it."""
    return cells({'k_u': (1, 2), **axes})


def test_a_cell_that_fails_is_named_and_the_others_go_on(caplog, tmp_path):
    def train(group):
        if len(group) == 1 and (group[0].config.lr, group[0].config.k_u) == (0.02, 1):
            raise Diverged('loss is nan')
        if len(group) > 1:
            raise UserError('one of them')
        return [result(group[0].config.lr)]

    results = run(alone(lr=(0.01, 0.02)), None, train)
    assert caplog.messages == ['k_u=1, lr=0.02: loss is nan']
    assert list(results) == [(1, 0.01), (2, 0.01), (2, 0.02)]
    with pytest.raises(Diverged, match='loss is nan'):
        results[1, 0.02]
    with pytest.raises(KeyError):
        results[1, 0.03]
    assert repr(results).splitlines() == [
        'k_u    lr   final  mean of last   best  rounds',
        '  1  0.01   1.00%         1.00%  1.00%       4',
        '  1  0.02  failed',
        '  2  0.01   1.00%         1.00%  1.00%       4',
        '  2  0.02   2.00%         2.00%  2.00%       4',
        'k_u=1, lr=0.02: loss is nan',
    ]
    of_folders = run(cells({'lr': (0.01,)}), tmp_path, train)  # which are read when they are asked for
    assert of_folders[0.01]._homes == [tmp_path / config_lib.run_name(of_folders.cells[0].config, 'digits')]
    with pytest.raises(Diverged):  # nothing to return
        run(cells({'lr': (0.02,), 'k_u': (1,)}), None, train)


def test_cells_that_differ_in_numbers_of_a_round_or_their_split_are_one_program():
    def programs(axes, **changes):
        return grid.together(cells(axes, **changes), lambda cell: grid.program(cell.config))

    made = programs({'lr': (0.1, 0.2), 'k_u': (1, 2), 'clustering_weight': (0.0, 0.5, 1.0)})
    lr, weights = (0.1, 0.2), (0.5, 1.0)
    assert [[cell.key for cell in group] for group in made] == [
        [(rate, k_u, weight) for rate in lr for weight in some] for k_u in (1, 2) for some in ((0.0,), weights)
    ]
    varied = [grid.varied([cell.config for cell in group]) for group in made]
    assert varied == [['lr'], ['clustering_weight', 'lr']] * 2
    for own in {'diagnostics_every': 1}, {}:  # the arrays of diagnostics come from programs with constants
        groups = programs({'lr': (0.1, 0.2), 'prior.decay': (0.5, 0.9)}, algorithm='semisfl_prior', **own)
        assert len(groups) == (4 if own else 1)
    (split,) = programs({'federation.partition': ('uniform', 'dirichlet'), 'data.partition_seed': (3, 4)})
    assert grid.varied([cell.config for cell in split]) == []
    assert [len(group) for group in programs({'lr': np.arange(1, 202)})] == [100, 100, 1]


def shapes_the_program():
    jax.jit(lambda number: 0.0 if number else 1.0)(0.5)


def is_too_large():
    raise memory.TooLarge('of memory')


@pytest.mark.parametrize(
    ('fail', 'sizes', 'said'),
    [(shapes_the_program, [4, 1, 1, 1, 1], 'lr shapes the program; 4 runs'), (is_too_large, [4, 2, 1, 1, 2, 1, 1], '')],
)
def test_what_is_no_program_is_trained_in_parts(fail, sizes, said, caplog):
    tried = []

    def train(group):
        tried.append(len(group))
        if len(group) > 1:
            fail()
        return [result(group[0].config.lr)]

    assert list(run(cells({'lr': (0.1, 0.2, 0.3, 0.4)}), None, train)) == [0.1, 0.2, 0.3, 0.4]
    assert tried == sizes
    assert said in caplog.text


def check_alone(folder, made, alone):
    """All files of a cell are those of the run alone, but for seconds."""
    home = folder / config_lib.run_name(made.config, 'digits')
    for name in ['seed_0', 'seed_1'] if made.config.seeds else ['']:
        assert runs.lines(home / name) == runs.lines(alone / name)
        for file in 'config.json', 'began.json', 'partition.npz':
            assert (home / name / file).read_bytes() == (alone / name / file).read_bytes()


def test_each_run_of_a_program_is_the_run_alone(tmp_path):
    axes = {'lr': (0.1, 0.02), 'seed': (0, 1)}
    results = sfl.train(CHEAP, tmp_path / 'grid', grid=axes)
    alone = sfl.train(config(algorithm='supervised_only', rounds=2, lr=0.02, seeds=(0, 1)), tmp_path / 'alone')
    check_alone(tmp_path / 'grid', results.cells[1], tmp_path / 'alone')
    assert all(equal(ours, theirs) for ours, theirs in zip(results[0.02].state, alone.state, strict=True))
    again = sfl.train(CHEAP, tmp_path / 'grid', grid=axes)
    check_same(again[0.1], results[0.1])


@pytest.mark.slow
@pytest.mark.parametrize('method', ['semisfl', 'fedavg'])
def test_runs_with_other_splits_are_the_runs_alone(method, tmp_path):
    """Of one client most images, or of all as many: tables of one shape, and in fedavg other numbers of steps."""
    own = {'algorithm': method, 'local.epochs': int(method == 'fedavg'), 'rounds': 2}
    own['federation.alpha'] = 0.05
    results = sfl.train(config(**own), tmp_path / 'grid', grid={'federation.partition': ('dirichlet', 'uniform')})
    for cell in results.cells:
        sfl.train(config(**own, **cell.values), tmp_path / cell.title)
        check_alone(tmp_path / 'grid', cell, tmp_path / cell.title)


@pytest.mark.slow
def test_a_program_goes_on_where_its_runs_were_and_without_one_that_diverges(tmp_path, caplog):
    """Of three learning rates, one run was killed after its second round, and one diverges in its first."""

    def die(event):
        if isinstance(event, sfl.events.RoundDone) and event.round == 2:
            raise RuntimeError('killed')

    started, axes = config(checkpoint_every=1, rounds=4), {'lr': (0.1, 0.02, 1e30)}
    made = cells(axes, **{**runs.TINY, 'checkpoint_every': 1, 'rounds': 4})
    home = tmp_path / 'grid' / config_lib.run_name(made[1].config, 'digits')
    with pytest.raises(RuntimeError, match='killed'):
        sfl.train(config(checkpoint_every=1, rounds=4, lr=0.02), home, [die])
    results = sfl.train(started, tmp_path / 'grid', grid=axes)
    assert isinstance(results.failed[1e30], Diverged)
    assert [line for line in caplog.messages if line.startswith('lr=1e+30: ')]
    for cell in made[:2]:
        sfl.train(config(checkpoint_every=1, rounds=4, lr=cell.key), tmp_path / str(cell.key))
        check_alone(tmp_path / 'grid', cell, tmp_path / str(cell.key))


@pytest.mark.slow
def test_a_program_on_all_of_its_runs_at_once_agrees_up_to_rounding(tmp_path):
    results = sfl.train(
        config(rounds=2, **{'parallel.trials': 'vmap'}), grid={'lr': (0.1, 0.02), 'temperature': (0.1, 0.3)}
    )
    for (lr, temperature), ours in results.items():
        alone = sfl.train(config(rounds=2, lr=lr, temperature=temperature))
        np.testing.assert_allclose(ours.metrics['loss_supervised'], alone.metrics['loss_supervised'], rtol=2e-4)


def test_with_callbacks_the_runs_are_trained_in_turn(tmp_path):
    reported = []
    sfl.train(CHEAP, tmp_path, [reported.append], grid={'lr': (0.1, 0.02)})
    kinds = [type(event).__name__ for event in reported]
    assert kinds.count('Described') == 2
    assert kinds.index('Ended') < len(kinds) - 1 - kinds[::-1].index('Described')


# Of these, Python's own logarithm is taken
OF_PYTHON = {'mfed.growth', 'mfed.max_weight', 'mfed.weight'}


@pytest.mark.slow
@pytest.mark.parametrize('name', sorted(sfl.algorithms.METHODS))
def test_every_number_of_a_round_can_vary(name):
    dense = name in ('m_fed', 'mfed_fl', 'mfed_local')
    changes = {'algorithm': name, **({'data.client_labels': 40, 'k_s': 0} if name in ('splitfed', 'feddure') else {})}
    changes |= {'weight_decay': 1e-4, **({'data.fake': True, 'setting': 'harmonized'} if dense else {})}
    made = sfl.get_config('digit_scenes' if dense else 'digits', changes)
    config_lib.check(made)
    built = experiment.build(config_lib.resolve(made))
    numbers = sorted(grid._numbers(built.config) - OF_PYTHON)
    assert {'lr', 'momentum', 'weight_decay'} < {*numbers}
    arguments = shapes.round_arguments(built, jax.devices()[0])
    values = [jax.ShapeDtypeStruct((), np.float32) for _ in numbers]
    state, _ = jax.eval_shape(partial(driver.compute_round, built, numbers), *arguments, *values)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(
        lambda x: (x.shape, x.dtype), built.state_shapes
    )
