"""The studies of the papers: all resolve, share their runs, and have the papers' protocols and numbers."""

import functools
import math
import re

import pytest

from configs.studies import feddure, mfed, paper, scales, shvr
from semisfl_jax import config as config_lib
from semisfl_jax.base.errors import UserError
from semisfl_jax.config import command_line
from semisfl_jax.lab.studies import plan, spec
from tests import gate
from tests.helpers import runs, studies_words
from tests.helpers.marks import slow_but
from tests.helpers.studies_words import ALL, CELLS, CELLS_OF_LABELED, CELLS_OF_MFED, parse, study

# Runs of three seeds, which share a program but for those of large models: Local, FL, and M-Fed for every lambda_0 with
# many images; FL and M-Fed for every lambda_0 with few. M-Fed's own lambda_0 is one of them. At scale full, and others
RUNS_OF_MFED = {'mfed_table2': (3 * (2 + 4 + 1 + 4), 2 + 2 + 1 + 2), 'mfed_table3': (3 * 2 * 3, 3)}
EVERY_TIME = ('table4', 'shvr_fig4', 'feddure_table2', 'mfed_table3')  # resolving all takes a minute


@functools.cache
def names_of_runs(name):
    """Of a study at scale full."""
    return {job.name for job in studies_words.jobs(study(name, 'full'))}


def count(name, scale):
    """Cells, None where they were not counted."""
    if name in CELLS_OF_MFED:
        return CELLS_OF_MFED[name][scale != 'full']
    if scale == 'one_round':
        return 7 * 2 + 2 * 4 + 5  # Fed-SHVR's first round: its table, its alpha0, its clients
    if (name, scale) == ('shvr_table1', 'long'):
        return 8 * 4
    share = 1 if scale == 'full' else {'feddure_table1': 3, 'feddure_table2': 2}.get(name, 1)
    return CELLS_OF_LABELED[name] / share if name in CELLS_OF_LABELED else CELLS.get(name) if scale == 'full' else None


def test_a_setting_is_of_the_methods_of_a_study():
    """semisfl, which a configuration has by default, has no official one."""
    words = ['', '--config=studies/mfed_table2:smoke', '--config.setting=official']
    command = command_line.parse(words, studies=True)
    cells = spec.with_changes(command.config.study, command.given).cells()
    assert {cell.config.setting for cell in cells} == {'official'}


@pytest.mark.parametrize(('name', 'scale'), slow_but(ALL, *((name, 'cpu') for name in EVERY_TIME)))
def test_every_study_resolves(name, scale):
    definition = study(name, scale)
    made_plan = plan.make(definition, {})
    assert (definition.name, definition.scale) == (name, scale)
    assert bool(definition.warning) == (scale not in ('full', 'one_round'))
    made, jobs = list(definition.cells()), made_plan.jobs
    assert gate.digest(gate.lines(jobs)) == gate.expected()['runs'][f'{name}:{scale}'], 'names and commands of runs'
    assert len(made) == count(name, scale) or not count(name, scale)
    if name in CELLS and scale == 'full':
        assert {(tuple(cell.config.seeds), cell.config.rounds) for cell in made} == {(tuple(range(10)), 1000)}
    if name in CELLS_OF_MFED:
        assert len(jobs) == RUNS_OF_MFED[name][scale != 'full']  # the columns of a row read the same runs
    for job in jobs[:: len(jobs) // 3 + 1]:  # the command that the report gives makes the run of the cell
        config = command_line.parse(['launch.py', f'--config={runs.ROOT}/configs/{job.base}.py', *job.options()]).config
        cell = next(cell for cell in made if job in plan.jobs_of(cell))
        different = config_lib.differences(config_lib.resolve(config), config_lib.resolve(cell.config))
        assert [line for line in different if not line.startswith(('seed:', 'seeds:', 'model.weights:'))] == []
        assert config.rounds == cell.config.rounds
        assert (tuple(config.seeds) or (config.seed,)) == job.seeds


NUMBERS = [
    ('table2', 0, 'SemiFL', 'STL-10', 90.7),
    ('table3', 0, 'FedMatch', 'SVHN', 84.1),
    ('table4', 0, 'SemiSFL', 'Dir(0.05)', 82.3),
    ('table5', 0, 'No projection head', 'Dir(0.1)', 82.8),
    ('table6', 1, 'alpha = 3', 'beta = 4', 89.7),
    ('fig5_6_cost', 0, 'FedSwitch-SL', 'CIFAR-10 to 80%', 113.6),
    ('fig9_labels', 0, 'FedSwitch-SL', '250 labels', 63.0),
    ('shvr_table1', 0, 'Fed-SHVR', 'Non-IID, T = 100', 95.5),
    ('shvr_table1', 0, 'Fed-SHVR, alpha1 = alpha2 = 0', 'Non-IID, T = 1', 34.7),
    ('feddure_table1', 0, 'FedMatch', 'Fashion-MNIST (IID, DIR)', 85.55),
    ('feddure_table2', 0, 'FedDure without F-reg', 'Fashion-MNIST (IID, DIR)', 88.14),
    ('mfed_table2', 0, 'M-Fed', 'Edges', 66.20),
    ('mfed_table2', 0, 'M-Fed', 'Delta_m', 12.38),
    ('mfed_table3', 1, 'M-Fed', 'Stuff', 16.62),
]


@pytest.mark.parametrize(
    ('name', 'table', 'row', 'column', 'number'), slow_but(NUMBERS, *(row for row in NUMBERS if row[0] in EVERY_TIME))
)
def test_cells_have_the_numbers_that_the_papers_report(name, table, row, column, number):
    assert study(name, 'full').tables[table].at(row, column).paper.mean == number


def test_gains_that_the_papers_state():
    """5.8 % over the baselines in non-IID scenarios is Table IV's last column but one, and 16.17 % over FedMatch on
    CIFAR-10 FedDure's of (IID, IID), or no number was typed wrong; numbers that stand in two tables agree."""
    gaps = [paper.TABLE_4['SemiSFL'][3][0] - paper.TABLE_4[row][3][0] for row in ('SemiFL', 'FedSwitch')]
    assert gaps == [pytest.approx(5.8), pytest.approx(5.0)]
    assert paper.TABLE_5['mlp'] == tuple(mean for mean, _ in paper.TABLE_4['SemiSFL'])
    assert [paper.TABLE_3[row]['CIFAR-10'] for row in paper.TABLE_3] == [paper.TABLE_4[row][2] for row in paper.TABLE_3]
    gap = feddure.TABLE_1['FedDure']['CIFAR-10'][0][0] - feddure.TABLE_1['FedMatch']['CIFAR-10'][0][0]
    assert gap == pytest.approx(16.17)


# The data sets of the paper and their labels (its section on data sets).
LABELS = {'svhn_cropped': 1000, 'cifar10': 4000, 'stl10': 5000, 'image100': 5000}


@pytest.mark.parametrize('name', slow_but(CELLS, 'table4'))
def test_numbers_of_the_paper_belong_to_its_data(name):
    """At full scale all of them stand beside a run on their data set; on other data, or synthetic images, none does."""
    full = study(name, 'full')
    for table in full.tables:
        for cell in filter(lambda cell: cell.published, table.cells):
            assert cell.paper == cell.published
            few = '250 labels' in f'{table.title}, {cell.column}'
            assert cell.published.labels == (250 if few else LABELS[cell.published.data])
    for key, value in {'data.fake': True, 'data.num_validation': 100}.items():
        assert not any(cell.paper for cell in spec.with_changes(full, {key: value}).cells()), key
    small = study(name, 'cpu')
    assert not any(cell.paper for cell in small.cells())
    titles = ' '.join(text for table in small.tables for text in (table.title, *table.columns))
    assert not [word for word in ('CIFAR', 'SVHN', 'STL', 'IMAGE') if word in titles]


@pytest.mark.slow
def test_numbers_of_the_others_stand_beside_their_data_alone():
    """At `cpu` beside MNIST after one round, and Fashion-MNIST, whose network is smaller, as the warning says."""

    def beside(definition):
        return {cell.column.split(' (')[0] for cell in definition.cells() if cell.paper}

    table4, mfed2 = study('table4', 'full'), study('mfed_table2', 'full')
    assert [cell for cell in table4.cells() if bool(cell.paper) == (cell.row in scales.LINES)] == []
    assert not beside(spec.with_changes(table4, {'data.num_labeled': 250}))
    assert beside(study('shvr_table1', 'cpu')) == {'IID, T = 1', 'Non-IID, T = 1'}
    assert beside(study('feddure_table2', 'cpu')) == {'Fashion-MNIST'}
    assert [cell.paper is not None for cell in mfed2.tables[0].cells if not cell.measure.trivial] == [True] * 15
    assert not any(cell.paper for cell in mfed2.tables[1].cells)
    part = mfed2.part(mfed2.tables[0].rows, mfed2.tables[0].columns)
    for definition, changes in ((mfed2, {'data.fake': True}), (part, {'data.num_unlabeled': 900})):
        assert not beside(spec.with_changes(definition, changes))
    for name in (*CELLS_OF_LABELED, *CELLS_OF_MFED):
        assert not beside(study(name, 'smoke'))


@pytest.mark.slow
def test_studies_share_runs():
    """Table VI's alpha = 1.5 and beta = 8 are the configurations' own: runs of Table II and of Fig. 9 and 12."""
    assert names_of_runs('fig5_6_cost') < names_of_runs('table2')
    assert len(names_of_runs('table3') & names_of_runs('table4')) == (5 + 3) * 10  # CIFAR-10 at Dir(0.1), by seeds
    assert len(names_of_runs('table2') & names_of_runs('table3')) == 1 + 10 + 10  # the server alone
    svhn, many, few = study('table6', 'full').tables
    places = (svhn, 'table2'), (many, 'table2'), (many, 'fig9_labels'), (few, 'fig9_labels'), (few, 'fig12_ablation')
    for table, other in places:
        own, of_code = (table.at(row, 'beta = 8') for row in ('alpha = 1.5', 'alpha = 1.5, code'))
        assert {job.name for job in plan.jobs_of(own)} <= names_of_runs(other)
        assert not {job.name for job in plan.jobs_of(of_code)} & names_of_runs(other)


@pytest.mark.parametrize(
    ('scale', 'images', 'betas'),
    [
        ('smoke', 1437, [15, 29, 44]),  # 1 / (20 / 1,437 * 5) = 14.4, 28.7, 43.1
        ('cpu', 60_000, [61, 121, 181]),  # 1 / (100 / 60,000 * 10) = 60, and the next whole number
        ('digits', 1437, [8, 15, 22]),  # 1 / (20 / 1,437 * 10) = 7.2, 14.4, 21.6
        ('mnist', 60_000, [121, 241, 361]),  # 1 / (50 / 60,000 * 10) = 120
    ],
)
def test_k_s_of_table_6_falls_to_1_2_or_3(scale, images, betas):
    """K_s falls to 1, 2 or 3, by the rules of the paper and by those of its code."""
    (table,) = study('table6', scale).tables
    assert table.rows == [f'alpha = {a}{end}' for end in ('', ', code') for a in ('1.5', '2', '3', '4')]
    assert table.columns == [f'beta = {beta}' for beta in betas]
    for cell in table.cells:
        config, smallest = cell.config, 1 + table.columns.index(cell.column)
        code = cell.row.endswith(', code')
        assert (config.queue, config.k_s_rule) == (('single_ring', 'code') if code else ('two_level', 'auto'))
        assert config.frequency.beta == betas[smallest - 1]
        exact = config.frequency.beta * config.data.num_labeled * config.k_u / images
        assert (math.floor(exact), round(exact)) == (smallest, smallest)


def test_a_part_of_a_study_keeps_the_rows_and_columns_asked_for():
    whole = study('table4', 'smoke')
    assert whole.part(whole.tables[0].rows, whole.tables[0].columns) == whole
    part = whole.part(['SemiSFL', 'FedSwitch'], ['Dir(0.1)', 'Dir(1)'])
    places = [('FedSwitch', 'Dir(1)'), ('FedSwitch', 'Dir(0.1)'), ('SemiSFL', 'Dir(1)'), ('SemiSFL', 'Dir(0.1)')]
    assert [(cell.row, cell.column) for cell in part.cells()] == places
    assert part.tables[0].reference == 'SemiSFL'
    other = whole.part(['FedSwitch'], ['Dir(1)'])
    assert other.tables[0].reference == ''  # nothing left to compare
    assert len({whole.name, part.name, other.name}) == 3  # no report takes the place of another
    with pytest.raises(UserError, match=r"'FedSGD' .*SemiFL"):
        whole.part(['FedSGD'], ['Dir(1)'])
    gains = study('mfed_table2', 'smoke')  # a gain over a row that is left out is left out
    columns = gains.part(['M-Fed', 'FL per task'], gains.tables[0].columns).tables[0].columns
    assert columns == ['Segmentation', 'Parts', 'Saliency', 'Edges']
    methods = study('priors', 'smoke').part(['SemiSFL + client priors', 'SemiSFL'], [])
    assert len(methods.tables) == 3  # of four: of the parts, one row would be left


def test_changes_reach_every_run():
    command = parse('table4', 'smoke', '--config.seeds=4,5', '--config.rounds=3', '--config.data.data_dir=/there')
    changed = spec.with_changes(command.config.study, command.given)
    for cell in changed.cells():
        assert (tuple(cell.config.seeds), cell.config.rounds, cell.config.data.data_dir) == ((4, 5), 3, '/there')
    job = studies_words.jobs(changed)[0]
    assert {'--config.seeds=4,5', '--config.rounds=3', '--config.data.data_dir=/there'} <= set(job.options())
    assert '/there' not in job.command()
    names = [plan._report_name(changed, given) for given in ({}, {'data.data_dir': '/there'}, {'rounds': 3})]
    assert names[:2] == ['table4-smoke', 'table4-smoke']
    assert names[2].startswith('table4-smoke-')


@pytest.mark.parametrize(
    ('scale', 'word', 'named'),
    [
        ('smoke', '--config.k_s_rule=fixed', r'config\.k_s_rule '),
        ('smoke', '--config.seed=1', r'config\.seed .*config\.seeds'),
        ('smoke', '--config.lr=-1', r'fig11_frequency:smoke, .* / .*: config\.lr=-1'),
        ('smoke', '--config.study=x', r'config\.study '),
        ('huge', '--config.rounds=1', "'huge'.*smoke, cpu, digits, mnist, cifar, full"),
        ('', '--config.rounds=1', r'smoke \(.*, cpu \(.*, digits \(.*, mnist \(.*, full \('),
    ],
)
def test_a_command_that_makes_no_sense(scale, word, named):
    def check():
        command = parse('fig11_frequency', scale, word)
        plan.make(command.config.study, command.given)

    with pytest.raises(UserError, match=named):
        check()


def test_a_misspelt_key_in_the_file_of_a_study_names_its_cell_and_the_nearest_key(monkeypatch):
    wrong = {'algorithm': 'fedavg', 'local.epoch': 1}
    monkeypatch.setitem(feddure.METHODS, 'A', wrong)
    for make in (
        lambda: scales.cell('smoke', 'A', 'B', 'cifar10', wrong),
        lambda: shvr.cell('smoke', 'A', 'B', wrong),
        lambda: feddure.cell('smoke', 'A', 'B', 'cifar10', '(IID, IID)', None),
        lambda: mfed.cells('smoke', 'pascal_context', 'A', wrong, ('semseg',), 'Local'),
    ):
        with pytest.raises(UserError, match=r'^A( / B)?: config\.local\.epoch .*config\.local\.epochs'):
            make()


@pytest.mark.slow
def test_the_protocol_of_fed_shvr():
    """The official setting (tests/config/test_resolve.py), and what rows and columns change in it (Section V)."""
    table = study('shvr_table1', 'full').tables[0]
    for cell in table.cells:
        config = config_lib.resolve(cell.config)
        federation = config.federation
        assert (config.optimizer, config.lr, config.rounds) == ('sgd', 0.01, 100)
        assert (config.model.name, len(config.seeds)) == ('mlp5000', 5)
        alone = config.local.objective == 'supervised' and cell.row.startswith('FedAvg, ')
        assert config.batch_size == (32 if alone else 64)
        assert config.local.steps == 'longest' or cell.row.endswith('as many steps')
        split = federation.partition, federation.labeled_partition, federation.classes_per_client
        skewed = cell.column.startswith('Non-IID')
        assert split == (('dirichlet_class', 'classes', 2) if skewed else ('uniform', 'same', 2))
    for end, alphas in {
        ', alpha1 = alpha2 = 0': (1.0, 0.0, 0.0),
        ', alpha2 = 0': (1.0, 0.75, 0.0),
        ', alpha1 = 0': (1.0, 0.0, 0.1),
        '': (1.0, 0.75, 0.1),
    }.items():
        options = table.at(f'Fed-SHVR{end}', 'IID, T = 1').config.fed_shvr
        assert (options.alpha0, options.alpha1, options.alpha2) == alphas


@pytest.mark.slow
def test_the_protocol_of_feddure():
    """The official setting (tests/config/test_resolve.py), and what rows and columns change in it (Section 4.1)."""
    for cell in study('feddure_table1', 'full').cells():
        config = config_lib.resolve(cell.config)
        assert (config.optimizer, config.lr, config.rounds) == ('adam', 5e-4, 200)
        assert (config.data.num_labeled, config.model.name) == (5000, 'resnet9')
        assert config.data.pad_to == (32 if config.data.name == 'fashion_mnist' else 0)
        alone = config.local.objective == 'supervised' and config.algorithm != 'feddure'
        assert (config.batch_size, config.federation.mu) == ((10, 1) if alone else (20, 1))
        labeled, unlabeled = re.search(r'\((.*), (.*)\)', cell.column).groups()
        rules = {'IID': 'uniform', 'DIR': 'dirichlet_class'}
        assert config.federation.partition == rules[unlabeled]
        assert config.federation.labeled_partition == rules[labeled]
        assert config.federation.alpha == 0.5 or unlabeled == 'IID'


@pytest.mark.parametrize(
    ('name', 'clients', 'rounds', 'models'),
    [
        ('mfed_table2', 20, 20, {'deeplabv3plus_resnet18'}),
        ('mfed_table3', 20, 12, {'deeplabv3_resnet50', 'deeplabv3_resnet101'}),
    ],
)
def test_the_protocol_of_mfed(name, clients, rounds, models):
    assert {cell.config.model.name for cell in study(name, 'full').cells()} == models
    for scale in mfed.COSTS:
        for cell in study(name, scale).tables[0].cells:
            config = cell.config
            assert (config.federation.num_clients, config.rounds) == (clients, 4 if scale == 'smoke' else rounds)
            if scale != 'full':  # where edges are a task, their tolerance is a pixel
                assert config.data.image_size == (48 if name == 'mfed_table3' else 96)


@pytest.mark.parametrize('scale', mfed.COSTS)
def test_few_images_make_as_many_iterations_as_many(scale):
    """Of a client of semantic segmentation: its images times epochs, by the size of a batch."""
    table, training = study('mfed_table2', scale).tables[1], {'smoke': 2_000, 'cpu': 10_000, 'full': 4_998}
    few, many = (table.at('lambda_0 = 0', f'Delta_m, {count}').config for count in ('few', 'many'))
    assert few.data.num_unlabeled < (many.data.num_unlabeled or training[scale])
    seen = [(config.data.num_unlabeled or training[scale]) * config.local.epochs for config in (few, many)]
    assert seen[0] == pytest.approx(seen[1], rel=1e-3)


def test_lambda_where_a_task_is_scarce():
    """In the last of 20 rounds, as the row says, from a lambda_0 of two digits; in both tables, by as many images."""
    tables = study('mfed_scarce', 'cpu').tables[::2]
    rows = [(table, row) for table in tables for row in table.rows if ', rho ' in row]
    assert len(rows) == 2 * 3 * 2
    for table, row in rows:
        config, (last, growth) = table.at(row, 'Segmentation').config, map(float, re.findall(r'\d\S*\d', row))
        assert config.mfed.weight * growth ** (config.rounds - 1) == pytest.approx(last, rel=0.05)
        assert (config.rounds, config.data.images_of_tasks) == (20, (50, 2000, 2000, 2000))


@pytest.mark.slow
def test_seeds_share_a_program_where_models_are_small():
    full = study('table2', 'full').tables[0]
    assert [job.seeds for job in plan.jobs_of(full.at('SemiSFL', 'SVHN'))] == [tuple(range(10))]
    assert [job.seeds for job in plan.jobs_of(full.at('SemiSFL', 'CIFAR-10'))] == [(seed,) for seed in range(10)]


@pytest.mark.parametrize(
    ('word', 'names'),
    [('no queue', ('no queue',)), ('5', ('5',)), ('A,no queue', ('A,no queue',)), ("'A, B','C'", ('A, B', 'C'))],
)
def test_rows_need_no_quotation_marks(word, names):
    assert parse('parts', 'smoke', f'--config.study_rows={word}').config.study_rows == names
