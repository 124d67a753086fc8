"""The studies of the papers: all resolve, share their runs, and have the papers' protocols and numbers."""

import math
import re
from pathlib import Path

import pytest

import launch
from configs.studies import feddure, mfed, paper, scales, shvr
from semisfl_jax import config as config_lib
from semisfl_jax.config import command_line
from semisfl_jax.core.errors import UserError
from semisfl_jax.studies import collect, document, plan, report, spec
from tests import runs
from tests.studies_words import ALL, CELLS, CELLS_OF_LABELED, CELLS_OF_MFED, parse, study

# Runs of three seeds, which share a program but for those of large models: Local, FL, and M-Fed for every lambda_0 with
# many images; FL and M-Fed for every lambda_0 with few. M-Fed's own lambda_0 is one of them. At scale full, and others
RUNS_OF_MFED = {'mfed_table2': (3 * (2 + 4 + 1 + 4), 2 + 2 + 1 + 2), 'mfed_table3': (3 * 2 * 3, 3)}


def count(name, scale):
    """Cells, None where they were not counted."""
    if name in CELLS_OF_MFED:
        return CELLS_OF_MFED[name][scale != 'full']
    share = 1 if scale == 'full' else {'feddure_table1': 3, 'feddure_table2': 2}.get(name, 1)
    return CELLS_OF_LABELED[name] / share if name in CELLS_OF_LABELED else CELLS[name] if scale == 'full' else None


@pytest.mark.parametrize(('name', 'scale'), ALL)
def test_every_study_resolves(name, scale):
    definition = study(name, scale)
    spec.check(definition)
    plan.check(definition)
    assert (definition.name, definition.scale, bool(definition.warning)) == (name, scale, scale != 'full')
    made, jobs = list(definition.cells()), plan.jobs(definition)
    assert len(made) == (count(name, scale) or len(made))
    if name in CELLS and scale == 'full':
        assert {tuple(cell.config.seeds) for cell in made} == {tuple(range(10))}
        assert {cell.config.rounds for cell in made} == {1000}
    if name in CELLS_OF_MFED:
        assert len(jobs) == RUNS_OF_MFED[name][scale != 'full']  # the columns of a row read the same runs
    for job in jobs[:: len(jobs) // 3 + 1]:  # the command that the report gives makes the run of the cell
        config = command_line.parse(['launch.py', f'--config={runs.ROOT}/configs/{job.base}.py', *job.options()]).config
        cell = next(cell for cell in made if job in plan.jobs_of(cell))
        different = config_lib.differences(config_lib.resolve(config), config_lib.resolve(cell.config))
        assert [line for line in different if not line.startswith(('seed:', 'seeds:'))] == []
        assert config.rounds == cell.config.rounds
        assert (tuple(config.seeds) or (config.seed,)) == job.seeds


def test_every_study_is_known():
    files = {path.stem for path in (runs.ROOT / 'configs/studies').glob('*.py')}
    helpers = {'__init__', 'paper', 'scales', 'shvr', 'feddure', 'mfed'}
    assert files - helpers == {*CELLS, *CELLS_OF_LABELED, *CELLS_OF_MFED}


@pytest.mark.parametrize('name', [*CELLS, *CELLS_OF_LABELED])
def test_a_study_without_a_scale_lists_the_scales(name, tmp_path, capsys):
    words = [f'--config={runs.ROOT}/configs/studies/{name}.py', f'--workdir={tmp_path}/made']
    assert launch.main(['launch.py', *words]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count('\n')) == ('', 1)
    for scale, cost in (('smoke', 'minutes'), ('cpu', 'hour'), ('full', 'days')):
        assert re.search(rf'\b{scale} \([^)]*{cost}', printed.err), printed.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ('name', 'table', 'row', 'column', 'number', 'text'),
    [
        ('table2', 0, 'SemiSFL', 'STL-10', 92.8, '92.8 (0.3)'),
        ('table2', 0, 'SemiFL', 'STL-10', 90.7, '90.7 (2.5)'),
        ('table3', 0, 'FedMatch', 'SVHN', 84.1, '84.1 (0.6)'),
        ('table4', 0, 'SemiSFL', 'Dir(0.05)', 82.3, '82.3 (0.1)'),
        ('table5', 0, 'No projection head', 'Dir(0.1)', 82.8, '82.8'),
        ('table6', 0, 'alpha = 1.5', 'beta = 8', 91.1, '91.1'),
        ('table6', 1, 'alpha = 3', 'beta = 4', 89.7, '89.7'),
        ('table6', 2, 'alpha = 4', 'beta = 12', 75.3, '75.3'),
        ('fig5_6_cost', 0, 'FedSwitch-SL', 'CIFAR-10 to 80%', 113.6, None),
        ('fig9_labels', 0, 'FedSwitch-SL', '250 labels', 63.0, '63.0'),
        ('shvr_table1', 0, 'Fed-SHVR', 'Non-IID, T = 100', 95.5, None),
        ('shvr_table1', 0, 'FedAvg, all labels', 'IID, T = 1', 94.4, None),
        ('shvr_table1', 0, 'Fed-SHVR, alpha1 = alpha2 = 0', 'Non-IID, T = 1', 34.7, None),
        ('feddure_table1', 0, 'FedDure', 'CINIC-10 (DIR, DIR)', 46.43, None),
        ('feddure_table1', 0, 'FedMatch', 'Fashion-MNIST (IID, DIR)', 85.55, None),
        ('feddure_table2', 0, 'FedDure without C-reg', 'CIFAR-10 (DIR, DIR)', 54.79, None),
        ('feddure_table2', 0, 'FedDure without F-reg', 'Fashion-MNIST (IID, DIR)', 88.14, None),
        ('mfed_table2', 0, 'Local', 'Segmentation', 42.07, '42.07'),
        ('mfed_table2', 0, 'M-Fed', 'Edges', 66.20, '66.20'),
        ('mfed_table2', 0, 'M-Fed', 'Delta_m', 12.38, '12.38'),
        ('mfed_table3', 1, 'M-Fed', 'Stuff', 16.62, '16.62'),
    ],
)
def test_numbers_of_the_papers(name, table, row, column, number, text):
    published = study(name, 'full').tables[table].at(row, column).paper
    assert published.mean == number
    assert text is None or report._paper(published, '%') == text


def test_gains_that_the_papers_state():
    """5.8 % over the baselines in non-IID scenarios is Table IV's last column but one, and 16.17 % over FedMatch on
    CIFAR-10 FedDure's of (IID, IID), or no number was typed wrong; numbers that stand in two tables agree."""
    gaps = [paper.TABLE_4['SemiSFL'][3][0] - paper.TABLE_4[row][3][0] for row in ('SemiFL', 'FedSwitch')]
    assert gaps == [pytest.approx(5.8), pytest.approx(5.0)]
    assert paper.TABLE_5['mlp'] == tuple(mean for mean, _ in paper.TABLE_4['SemiSFL'])
    assert [paper.TABLE_3[row]['CIFAR-10'] for row in paper.TABLE_3] == [paper.TABLE_4[row][2] for row in paper.TABLE_3]
    gap = feddure.TABLE_1['FedDure']['CIFAR-10'][0][0] - feddure.TABLE_1['FedMatch']['CIFAR-10'][0][0]
    assert gap == pytest.approx(16.17)
    for row in ('FedAvg + FixMatch', 'FedDure'):
        for data, numbers in feddure.TABLE_2[row].items():
            assert feddure.TABLE_1[row][data][1:] == numbers


# The data sets of the paper and their labels (its section on data sets).
LABELS = {'svhn_cropped': 1000, 'cifar10': 4000, 'stl10': 5000, 'image100': 5000}


@pytest.mark.parametrize('name', CELLS)
def test_numbers_of_the_paper_belong_to_its_data(name):
    """At full scale all of them stand beside a run on their data set; on other data, or synthetic images, none does."""
    full = study(name, 'full')
    for table in full.tables:
        for cell in table.cells:
            if cell.published:
                assert cell.paper == cell.published
                few = '250 labels' in f'{table.title}, {cell.column}'
                assert cell.published.labels == (250 if few else LABELS[cell.published.data])
    assert not any(cell.paper for cell in plan.with_given(full, {'data.fake': True}).cells())
    for scale in ('smoke', 'cpu'):
        small = study(name, scale)
        assert not any(cell.paper for cell in small.cells())
        titles = ' '.join(text for table in small.tables for text in (table.title, *table.columns))
        assert not [word for word in ('CIFAR', 'SVHN', 'STL', 'IMAGE') if word in titles]


def test_numbers_of_the_others_stand_beside_their_data_alone():
    """At `cpu` beside MNIST after one round, and Fashion-MNIST, whose network is smaller, as the warning says."""

    def beside(definition):
        return {cell.column.split(' (')[0] for cell in definition.cells() if cell.paper}

    table4, mfed2 = study('table4', 'full'), study('mfed_table2', 'full')
    assert [cell for cell in table4.cells() if bool(cell.paper) == (cell.row in scales.LINES)] == []
    assert not beside(plan.with_given(table4, {'data.num_labeled': 250}))
    assert beside(study('shvr_table1', 'cpu')) == {'IID, T = 1', 'Non-IID, T = 1'}
    assert beside(study('feddure_table2', 'cpu')) == {'Fashion-MNIST'}
    assert [cell.paper is not None for cell in mfed2.tables[0].cells if not cell.measure.trivial] == [True] * 15
    assert not any(cell.paper for cell in mfed2.tables[1].cells)
    part = mfed2.part(mfed2.tables[0].rows, mfed2.tables[0].columns)
    for definition, changes in ((mfed2, {'data.fake': True}), (part, {'data.num_unlabeled': 900})):
        assert not beside(plan.with_given(definition, changes))
    for name in (*CELLS_OF_LABELED, *CELLS_OF_MFED):
        assert not beside(study(name, 'smoke'))


def test_studies_share_runs():
    table2, table3, table4, cost = (
        {job.name for job in plan.jobs(study(name, 'full'))} for name in ('table2', 'table3', 'table4', 'fig5_6_cost')
    )
    assert cost < table2
    assert len(table3 & table4) == (5 + 3) * 10  # CIFAR-10 at Dir(0.1), each seed apart
    assert not table2 & table3


@pytest.mark.parametrize('scale', scales.COSTS)
def test_table_6_also_stands_under_the_settings_of_the_code(scale):
    definition = study('table6', scale)
    for table in definition.tables:
        assert table.rows == [f'alpha = {a}{end}' for end in ('', ', code') for a in ('1.5', '2', '3', '4')]
        for cell in table.cells:
            code = cell.row.endswith(', code')
            rules = (cell.config.queue, cell.config.k_s_rule)
            assert rules == (('single_ring', 'code') if code else ('two_level', 'auto'))
            twin = table.at(cell.row.removesuffix(', code'), cell.column)
            assert (cell.published, cell.config.data) == (twin.published, twin.config.data)
    text = document.markdown(report.build(definition, collect.find(definition, Path('nowhere'), {}), []))
    assert text.count("Rows with 'code' run under the settings of the authors' code") == (3 if scale == 'full' else 1)


@pytest.mark.parametrize(
    ('scale', 'betas'),
    [
        ('smoke', [15, 29, 44]),  # 1 / (20 / 1,437 * 5) = 14.4, 28.7, 43.1
        ('cpu', [61, 121, 181]),  # 1 / (100 / 60,000 * 10) = 60, and the next whole number
        ('digits', [8, 15, 22]),  # 1 / (20 / 1,437 * 10) = 7.2, 14.4, 21.6
        ('mnist', [121, 241, 361]),  # 1 / (50 / 60,000 * 10) = 120
    ],
)
def test_table_6_has_three_smallest_k_s_at_small_scales(scale, betas):
    (table,) = study('table6', scale).tables
    assert table.columns == [f'beta = {beta}' for beta in betas]
    for column, beta, smallest in zip(table.columns, betas, (1, 2, 3), strict=True):
        assert {table.at(row, column).config.frequency.beta for row in table.rows} == {beta}
        config = table.at('alpha = 4', column).config
        images = {'digits': 1437, 'fashion_mnist': 60_000, 'mnist': 60_000}[config.data.name]
        exact = beta * config.data.num_labeled * config.k_u / images
        assert (math.floor(exact), round(exact)) == (smallest, smallest)  # by the rules of paper and code


def test_table_6_shares_the_main_runs():
    """alpha = 1.5 and beta = 8 are the configurations' own: those cells are runs of Table II and of Fig. 9 and 12."""
    svhn, many, few = study('table6', 'full').tables
    table2, fig9, fig12 = (
        {job.name for job in plan.jobs(study(n, 'full'))} for n in ('table2', 'fig9_labels', 'fig12_ablation')
    )
    for table, others in ((svhn, table2), (many, table2), (many, fig9), (few, fig9), (few, fig12)):
        assert {job.name for job in plan.jobs_of(table.at('alpha = 1.5', 'beta = 8'))} <= others
        assert not {job.name for job in plan.jobs_of(table.at('alpha = 1.5, code', 'beta = 8'))} & others


def test_seeds_share_a_program_where_models_are_small():
    full = study('table2', 'full').tables[0]
    assert [job.seeds for job in plan.jobs_of(full.at('SemiSFL', 'SVHN'))] == [tuple(range(10))]
    jobs = plan.jobs_of(full.at('SemiSFL', 'CIFAR-10'))
    assert [job.seeds for job in jobs] == [(seed,) for seed in range(10)]
    command = plan.command(jobs[:3])
    assert command.startswith('for seed in 0 1 2; do python launch.py --config=configs/cifar10.py ')
    assert command.endswith(' --config.seed=$seed; done')
    assert command.count('config.seed=') == 1


def test_part_of_a_study():
    full_study = study('table4', 'smoke')
    assert full_study.part(full_study.tables[0].rows, full_study.tables[0].columns) == full_study
    part = full_study.part(['SemiSFL', 'FedSwitch'], ['Dir(0.1)', 'Dir(1)'])
    places = [('FedSwitch', 'Dir(1)'), ('FedSwitch', 'Dir(0.1)'), ('SemiSFL', 'Dir(1)'), ('SemiSFL', 'Dir(0.1)')]
    assert [(cell.row, cell.column) for cell in part.cells()] == places
    assert {job.name for job in plan.jobs(part)} < {job.name for job in plan.jobs(full_study)}
    assert part.tables[0].reference == 'SemiSFL'
    other = full_study.part(['FedSwitch'], ['Dir(1)'])
    assert other.tables[0].reference == ''  # nothing left to compare
    assert len({full_study.name, part.name, other.name}) == 3  # no report takes the place of another
    with pytest.raises(UserError, match="'FedSGD' is not a row of table4; use one of SemiFL, "):
        full_study.part(['FedSGD'], ['Dir(1)'])
    gains = study('mfed_table2', 'smoke')  # a gain over a row that is left out is left out
    columns = gains.part(['M-Fed', 'FL per task'], gains.tables[0].columns).tables[0].columns
    assert columns == ['Segmentation', 'Parts', 'Saliency', 'Edges']


def test_changes_reach_every_run():
    command = parse('table4', 'smoke', '--config.seeds=4,5', '--config.rounds=3', '--config.data.data_dir=/there')
    changed = plan.with_given(command.config.study, command.given)
    for cell in changed.cells():
        assert (tuple(cell.config.seeds), cell.config.rounds, cell.config.data.data_dir) == ((4, 5), 3, '/there')
    job = plan.jobs(changed)[0]
    assert {'--config.seeds=4,5', '--config.rounds=3', '--config.data.data_dir=/there'} <= set(job.options())
    assert '/there' not in job.command()
    names = [plan.report_name(changed, given) for given in ({}, {'data.data_dir': '/there'}, {'rounds': 3})]
    assert names[:2] == ['table4-smoke', 'table4-smoke']
    assert names[2].startswith('table4-smoke-')


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--config.algorithm=semisfl'], 'config.algorithm is not the same in all runs of table4:smoke'),
        (['--config.seed=1'], 'write --config.seeds=0,1,2'),
        (['--config.lr=-1'], 'table4:smoke, SemiFL / Dir(1): config.lr=-1.0 must be above 0'),
        (['--config.study=x'], 'config.study is not a key'),
    ],
)
def test_changes_that_make_no_sense(words, message):
    def change():
        command = parse('table4', 'smoke', *words)
        plan.check(plan.with_given(command.config.study, command.given))

    with pytest.raises(UserError, match=re.escape(message)):
        change()


def test_mistakes_on_the_command_line():
    with pytest.raises(UserError, match=r"unknown scale 'huge'.*smoke, cpu, digits, mnist, full"):
        parse('table4', 'huge')
    with pytest.raises(UserError, match='table4 is a study of many runs'):
        command_line.parse(['costs', f'--config={runs.ROOT}/configs/studies/table4.py:smoke'])


def test_a_misspelt_key_in_the_file_of_a_study_names_its_cell_and_the_nearest_key(monkeypatch):
    wrong = {'algorithm': 'fedavg', 'local.epoch': 1}
    message = r'^A / B: config\.local\.epoch is not a key; did you mean config\.local\.epochs\?$'
    monkeypatch.setitem(feddure.METHODS, 'A', wrong)
    for make in (
        lambda: scales.cell('smoke', 'A', 'B', 'cifar10', wrong),
        lambda: shvr.cell('smoke', 'A', 'B', wrong),
        lambda: feddure.cell('smoke', 'A', 'B', 'cifar10', '(IID, IID)', None),
    ):
        with pytest.raises(UserError, match=message):
            make()
    with pytest.raises(UserError, match=message.replace('A / B', 'A')):
        mfed.cells('smoke', 'pascal_context', 'A', wrong, ('semseg',), 'Local')


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


@pytest.mark.parametrize(('name', 'clients', 'counts'), [('mfed_table2', 20, (5, 20)), ('mfed_table3', 10, (1, 12))])
def test_the_protocol_of_mfed(name, clients, counts):
    """Five clients a task, all active; m = 5 and T = 20 on PASCAL-Context, 1 and 12 on COCO (Section 5.1)."""
    for scale in mfed.COSTS:
        for cell in study(name, scale).tables[0].cells:
            config = cell.config
            assert (config.federation.num_clients, config.federation.num_active) == (clients, clients)
            assert (config.local.epochs, config.rounds) == (counts[0], 4 if scale == 'smoke' else counts[1])
            assert config.federation.partition == 'uniform'
            if scale != 'full':  # where edges are a task, their tolerance is a pixel
                assert config.data.image_size == {'mfed_table2': 96, 'mfed_table3': 32}[name]
    models = {cell.config.model.name for cell in study(name, 'full').cells()}
    expected = {'mfed_table2': {'deeplabv3plus_resnet18'}, 'mfed_table3': {'deeplabv3_resnet50', 'deeplabv3_resnet101'}}
    assert models == expected[name]


@pytest.mark.parametrize('scale', mfed.COSTS)
def test_few_images_make_as_many_iterations_as_many(scale):
    """Of a client of semantic segmentation: its images times epochs, by the size of a batch."""
    table, training = study('mfed_table2', scale).tables[1], {'smoke': 2_000, 'cpu': 10_000, 'full': 4_998}
    few, many = (table.at('lambda_0 = 0', f'Delta_m, {count}').config for count in ('few', 'many'))
    assert few.data.num_unlabeled < (many.data.num_unlabeled or training[scale])
    seen = [(config.data.num_unlabeled or training[scale]) * config.local.epochs for config in (few, many)]
    assert seen[0] == pytest.approx(seen[1], rel=1e-3)
