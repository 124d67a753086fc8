"""The studies of Fed-SHVR and FedDure: all resolve at all scales, with the papers' protocol and numbers."""

import re
from pathlib import Path

import numpy as np
import pytest

import launch
from configs.studies import feddure, shvr
from semisfl_jax import config as config_lib
from semisfl_jax.config import command_line
from semisfl_jax.plots import collect as plots_collect
from semisfl_jax.runs import Run
from semisfl_jax.studies import collect, measures, plan, report, spec
from semisfl_jax.studies.spec import Measure, Paper
from tests import runs
from tests.studies_cells import CELLS_OF_LABELED
from tests.studies_words import study


@pytest.mark.parametrize('scale', feddure.COSTS)
@pytest.mark.parametrize('name', CELLS_OF_LABELED)
def test_every_study_resolves(name, scale):
    definition = study(name, scale)
    spec.check(definition)
    plan.check(definition)
    assert (definition.name, definition.scale, bool(definition.warning)) == (name, scale, scale != 'full')
    made = list(definition.cells())
    share = {'feddure_table1': 1 / 3, 'feddure_table2': 1 / 2}.get(name, 1) if scale != 'full' else 1
    assert len(made) == share * CELLS_OF_LABELED[name]
    for table in definition.tables:
        assert not table.reference or table.reference in table.rows
        places = [(cell.row, cell.column) for cell in table.cells]
        assert len(set(places)) == len(places)
    jobs = plan.jobs(definition)
    for job in jobs[:: len(jobs) // 4 + 1]:  # the command that the report gives makes the run of the cell
        config = command_line.parse(['launch.py', f'--config={runs.ROOT}/configs/{job.base}.py', *job.options()]).config
        cell = next(cell for cell in made if job in plan.jobs_of(cell))
        different = config_lib.differences(config_lib.resolve(config), config_lib.resolve(cell.config))
        assert [line for line in different if not line.startswith(('seed:', 'seeds:'))] == []
        assert config.rounds == cell.config.rounds


def test_the_first_round_has_a_scale_of_its_own():
    """The paper's network, the rows of its table and FedAvg with as many steps, nothing beyond the first round."""
    definition = study('shvr_table1', 'one_round')
    spec.check(definition)
    plan.check(definition)
    table, of_alpha0, of_clients = definition.tables
    assert set(table.rows) == {*shvr.TABLE_1, 'FedAvg, few labels, as many steps'}
    assert table.at('Fed-SHVR', 'Non-IID, T = 1').paper.mean == 82.2
    assert [len(each.cells) for each in definition.tables] == [7 * 2, 2 * 4, 5]
    assert of_alpha0.rows == ['to 1, ramp', '1']
    assert [cell.config.federation.alpha for cell in of_clients.cells[1:]] == [0.1, 0.5, 1.0, 10.0]
    for cell in definition.cells():
        assert (cell.config.rounds, cell.config.model.name, tuple(cell.config.seeds)) == (1, 'mlp5000', (0, 1, 2, 3, 4))
    assert not definition.warning


@pytest.mark.parametrize('name', CELLS_OF_LABELED)
def test_a_study_without_a_scale_lists_the_scales(name, capsys):
    assert launch.main(['launch.py', f'--config={runs.ROOT}/configs/studies/{name}.py']) == 2
    error = capsys.readouterr().err
    assert error.count('\n') == 1
    for scale, cost in (('smoke', 'minutes'), ('cpu', 'hour'), ('full', 'days')):
        assert re.search(rf'\b{scale} \([^)]*{cost}', error), error


def test_the_protocol_of_fed_shvr():
    """MNIST: 10 clients, 60 labels and 5,940 other images each, batches of 32 and 32, two passes, 100 rounds, SGD with
    0.01 (Section V)."""
    table = study('shvr_table1', 'full').tables[0]
    for cell in table.cells:
        config = config_lib.resolve(cell.config)
        assert (config.federation.num_clients, config.federation.num_active, config.rounds) == (10, 10, 100)
        assert (config.lr, config.lr_min, config.momentum, config.nesterov, config.weight_decay) == (
            *(0.01, 0.01, 0.0),
            *(False, 0.0),
        )
        assert (config.k_s, config.optimizer, config.model.name, len(config.seeds)) == (0, 'sgd', 'mlp5000', 5)
        assert (config.augment.flip, config.augment.crop, config.augment.supervised) == (False, 0.0, 'weak')
        alone = config.local.objective == 'supervised' and cell.row.startswith('FedAvg, ')
        assert config.batch_size == (32 if alone else 64)
        assert config.local.steps == 'longest' or cell.row.endswith('as many steps')
        skewed = cell.column.startswith('Non-IID')
        assert config.federation.partition == ('dirichlet_class' if skewed else 'uniform')
        labels = (config.federation.labeled_partition, config.federation.classes_per_client)
        assert labels == (('classes', 2) if skewed else ('same', 2))
    weights = {
        row: (config.fed_shvr.alpha0, config.fed_shvr.alpha1, config.fed_shvr.alpha2)
        for row in table.rows
        if row.startswith('Fed-SHVR')
        for config in [table.at(row, 'IID, T = 1').config]
    }
    assert weights == {
        'Fed-SHVR, alpha1 = alpha2 = 0': (1.0, 0.0, 0.0),
        'Fed-SHVR, alpha2 = 0': (1.0, 0.75, 0.0),
        'Fed-SHVR, alpha1 = 0': (1.0, 0.0, 0.1),
        'Fed-SHVR': (1.0, 0.75, 0.1),
    }


def test_the_protocol_of_feddure():
    """100 clients, 5 of them active, 50 labels each, Adam with 5e-4, batches of 10 and 10, 200 rounds (Section 4.1)."""
    for cell in study('feddure_table1', 'full').cells():
        config = config_lib.resolve(cell.config)
        assert (config.federation.num_clients, config.federation.num_active, config.rounds) == (100, 5, 200)
        assert (config.optimizer, config.lr, config.lr_min, config.momentum) == ('adam', 5e-4, 5e-4, 0.9)
        assert (config.data.num_labeled, config.k_s, config.model.name) == (5000, 0, 'resnet9')
        assert config.data.pad_to == (32 if config.data.name == 'fashion_mnist' else 0)
        alone = config.local.objective == 'supervised' and config.algorithm != 'feddure'
        assert (config.batch_size, config.federation.mu) == ((10, 1) if alone else (20, 1))
        labeled, unlabeled = re.search(r'\((.*), (.*)\)', cell.column).groups()
        rules = {'IID': 'uniform', 'DIR': 'dirichlet_class'}
        assert config.federation.partition == rules[unlabeled]
        assert config.federation.labeled_partition == rules[labeled]
        assert config.federation.alpha == 0.5 or unlabeled == 'IID'


@pytest.mark.parametrize(
    ('name', 'row', 'column', 'number'),
    [
        ('shvr_table1', 'Fed-SHVR', 'Non-IID, T = 100', 95.5),
        ('shvr_table1', 'FedAvg, all labels', 'IID, T = 1', 94.4),
        ('shvr_table1', 'Fed-SHVR, alpha1 = alpha2 = 0', 'Non-IID, T = 1', 34.7),
        ('feddure_table1', 'FedDure', 'CINIC-10 (DIR, DIR)', 46.43),
        ('feddure_table1', 'FedMatch', 'Fashion-MNIST (IID, DIR)', 85.55),
        ('feddure_table2', 'FedDure without C-reg', 'CIFAR-10 (DIR, DIR)', 54.79),
        ('feddure_table2', 'FedDure without F-reg', 'Fashion-MNIST (IID, DIR)', 88.14),
    ],
)
def test_numbers_of_the_papers(name, row, column, number):
    assert study(name, 'full').tables[0].at(row, column).paper.mean == number


def test_numbers_that_stand_in_both_tables_of_feddure_agree():
    """And the gap that its text states: 16.17 % over FedMatch on CIFAR-10, which is that of (IID, IID)."""
    for row in ('FedAvg + FixMatch', 'FedDure'):
        for data, numbers in feddure.TABLE_2[row].items():
            assert feddure.TABLE_1[row][data][1:] == numbers
    gap = feddure.TABLE_1['FedDure']['CIFAR-10'][0][0] - feddure.TABLE_1['FedMatch']['CIFAR-10'][0][0]
    assert gap == pytest.approx(16.17)


def test_numbers_stand_beside_the_papers_data_alone():
    """At `cpu` beside MNIST after one round, and Fashion-MNIST, whose network is smaller, as the warning says."""
    beside = {cell.column for cell in study('shvr_table1', 'cpu').cells() if cell.paper}
    assert beside == {'IID, T = 1', 'Non-IID, T = 1'}
    beside = {cell.column.split(' (')[0] for cell in study('feddure_table2', 'cpu').cells() if cell.paper}
    assert beside == {'Fashion-MNIST'}
    for name in CELLS_OF_LABELED:
        assert not any(cell.paper for cell in study(name, 'smoke').cells())
    for name in ('shvr_table1', 'feddure_table2'):
        assert 'network' in study(name, 'cpu').warning or 'units' in study(name, 'cpu').warning


def test_deviations_are_written_as_such():
    assert report._paper(Paper(57.73, None, 'cifar10', 5000, 0.31), '%') == '57.73 (0.31)'
    assert report._paper(Paper(88.6, 0.2, 'cifar10', 4000), '%') == '88.6 (0.2)'
    table = study('feddure_table2', 'full').tables[0]
    assert 'paper: its mean (standard deviation)' in report._caption(table)
    keys = {key for key, has in report.PAPER_KEYS.items() if has(table.cells[0].paper)}
    assert keys == {'paper_mean', 'paper_standard_deviation'}


RECORDS = [
    {'round': 1, 'student_accuracy': 0.25, 'loss_local': 2.0},
    {'round': 2, 'loss_local': 1.5},
    {'round': 3, 'student_accuracy': 0.75, 'loss_local': 1.0, 'loss_global': 1.75},
    {'round': 4, 'student_accuracy': 0.5, 'loss_local': 0.25},
]


def run(records):
    return Run(Path('there'), {}, 0, 'student', records)


def test_measures_of_rounds():
    def read(kind, target=0.0):
        return measures.KINDS[kind].read(run(RECORDS), target)

    assert (read('accuracy_after', 1), read('accuracy_after', 2), read('accuracy_after', 3)) == (25.0, None, 75.0)
    assert (read('accuracy_after', 9), read('loss')) == (None, 1.75)
    assert (read('rounds', 0.5), read('rounds', 0.75), read('rounds', 0.9)) == (3, 3, None)
    assert Measure('rounds', 0.5).kind in measures.KINDS


def test_the_spread_over_seeds_divides_by_their_number():
    """Of .2, .4 and .9 with the mean .5: sqrt((.09 + .01 + .16) / 3)."""
    seeds = {n: run([{'round': 1, 'student_accuracy': value}]) for n, value in enumerate((0.2, 0.4, 0.9))}
    curve = plots_collect.spread('fed_sh', seeds)
    np.testing.assert_allclose(curve.mean, [(0.26 / 3) ** 0.5])
    assert curve.label == 'Fed-SH'


def test_the_deviation_of_a_seed_is_a_root_mean_square_over_rounds():
    """Round 1: .2, .4, .9 with the mean .5; round 3: .5, .5, .8 with the mean .6; round 2 was not evaluated."""
    seeds = {
        n: run([{'round': 1, 'student_accuracy': a}, {'round': 2}, {'round': 3, 'student_accuracy': b}])
        for n, (a, b) in enumerate(((0.2, 0.5), (0.4, 0.5), (0.9, 0.8)))
    }
    result = collect.CellResult(seeds, (0, 1, 2), [], '', [])
    found = collect.values(result, Measure('spread'))
    expected = [(30**2 + 10**2) / 2, (10**2 + 10**2) / 2, (40**2 + 20**2) / 2]
    np.testing.assert_allclose([found[n] for n in range(3)], np.sqrt(expected))
    curve = plots_collect.spread('fed_sh', seeds)
    np.testing.assert_allclose(np.mean(expected), np.mean((100 * curve.mean) ** 2))


def test_scales_share_no_settings_by_mistake():
    assert shvr.TABLE_1.keys() < shvr.methods('full').keys()
    assert feddure.TABLE_1.keys() < feddure.METHODS.keys()
    assert feddure.TABLE_2.keys() < feddure.METHODS.keys()
