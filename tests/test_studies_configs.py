"""The studies of the paper: all resolve at all scales, share their runs, and have the paper's numbers."""

import importlib
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
from tests.studies_cells import CELLS, CELLS_OF_LABELED, CELLS_OF_MFED
from tests.studies_words import parse, study

STAND_INS = {'smoke': 'digits', 'cpu': 'fashion_mnist', 'digits': 'digits', 'mnist': 'mnist'}  # files in configs/


@pytest.mark.parametrize('scale', scales.COSTS)
@pytest.mark.parametrize('name', CELLS)
def test_every_study_resolves(name, scale):
    definition = study(name, scale)
    spec.check(definition)
    plan.check(definition)
    assert (definition.name, definition.scale, bool(definition.warning)) == (name, scale, scale != 'full')
    made = list(definition.cells())
    if scale == 'full':
        assert len(made) == CELLS[name]
        assert {tuple(cell.config.seeds) for cell in made} == {tuple(range(10))}
        assert {cell.config.rounds for cell in made} == {1000}
    for table in definition.tables:
        assert not table.reference or table.reference in table.rows
        places = [(cell.row, cell.column) for cell in table.cells]
        assert len(set(places)) == len(places)
    for job in plan.jobs(definition)[:3]:  # the command that the report gives makes the run of the cell
        config = command_line.parse(['launch.py', f'--config={runs.ROOT}/configs/{job.base}.py', *job.options()]).config
        cell = next(cell for cell in made if job in plan.jobs_of(cell))
        different = config_lib.differences(config_lib.resolve(config), config_lib.resolve(cell.config))
        assert [line.split(':')[0] for line in different if not line.startswith(('seed:', 'seeds:'))] == []
        assert config.rounds == cell.config.rounds
        assert (tuple(config.seeds) or (config.seed,)) == job.seeds


def test_every_study_is_known():
    files = {path.stem for path in (runs.ROOT / 'configs/studies').glob('*.py')}
    others = {name for name in files if name.startswith(('shvr_', 'feddure_'))}  # tests/test_studies_labeled.py
    of_tasks = {name for name in files if name.startswith('mfed_')}  # tests/test_studies_mfed.py
    assert files - others - of_tasks - {'__init__', 'paper', 'scales', 'shvr', 'feddure', 'mfed'} == set(CELLS)
    assert (others, of_tasks) == (set(CELLS_OF_LABELED), set(CELLS_OF_MFED))


@pytest.mark.parametrize(
    ('name', 'row', 'column', 'number'),
    [
        ('table2', 'SemiSFL', 'STL-10', (92.8, 0.3)),
        ('table2', 'SemiFL', 'STL-10', (90.7, 2.5)),
        ('table2', 'Supervised-only', 'IMAGE-100', (26.1, 0.7)),
        ('table3', 'FedMatch', 'SVHN', (84.1, 0.6)),
        ('table3', 'SemiSFL', 'IMAGE-100', (56.1, 0.4)),
        ('table4', 'FedSwitch-SL', 'Dir(0.5)', (84.1, 0.7)),
        ('table4', 'SemiSFL', 'Dir(0.05)', (82.3, 0.1)),
        ('table5', 'No projection head', 'Dir(0.1)', (82.8, None)),
        ('fig5_6_cost', 'FedSwitch-SL', 'CIFAR-10 to 80%', (113.6, None)),
        ('fig9_labels', 'FedSwitch-SL', '250 labels', (63.0, None)),
    ],
)
def test_numbers_of_the_paper(name, row, column, number):
    assert study(name, 'full').tables[0].at(row, column).paper[:2] == number


def test_numbers_of_table_6():
    svhn, many, few = study('table6', 'full').tables
    assert svhn.at('alpha = 1.5', 'beta = 8').paper.mean == 91.1
    assert many.at('alpha = 3', 'beta = 4').paper.mean == 89.7
    assert few.at('alpha = 4', 'beta = 12').paper.mean == 75.3
    assert few.at('alpha = 2', 'beta = 12').config.data.num_labeled == 250
    assert (svhn.at('alpha = 4', 'beta = 4').config.data.name, svhn.columns) == (
        'svhn_cropped',
        ['beta = 4', 'beta = 8', 'beta = 12'],
    )


# The data sets of the paper and their labels (its section on data sets).
LABELS = {'svhn_cropped': 1000, 'cifar10': 4000, 'stl10': 5000, 'image100': 5000}


@pytest.mark.parametrize('name', CELLS)
def test_numbers_of_the_paper_belong_to_its_data(name):
    """At full scale all of them stand beside a run on their data set; on other data, or synthetic images, none does."""
    full = study(name, 'full')
    for cell in full.cells():
        if cell.published:
            assert cell.paper == cell.published
            location = f'{title_of(full, cell)}, {cell.column}'
            assert cell.published.labels == (250 if '250 labels' in location else LABELS[cell.published.data])
    made_up = plan.with_given(full, {'data.fake': True})
    assert [cell for cell in made_up.cells() if cell.paper] == []
    for scale in ('smoke', 'cpu'):
        assert [cell for cell in study(name, scale).cells() if cell.paper] == []


def title_of(definition, cell):
    return next(table.title for table in definition.tables if cell in table.cells)


def test_another_number_of_labels_is_another_experiment():
    full = study('table4', 'full')
    assert [cell for cell in full.cells() if bool(cell.paper) == (cell.row in scales.LINES)] == []
    assert not any(cell.paper for cell in plan.with_given(full, {'data.num_labeled': 250}).cells())


@pytest.mark.parametrize('scale', ['smoke', 'cpu'])
@pytest.mark.parametrize('name', CELLS)
def test_small_scales_quote_no_number_of_the_paper(name, scale):
    definition = study(name, scale)
    assert not [note for note in definition.notes if 'paper' in note.lower()]
    titles = ' '.join(
        [*(table.title for table in definition.tables), *(column for t in definition.tables for column in t.columns)]
    )
    assert not [word for word in ('CIFAR', 'SVHN', 'STL', 'IMAGE') if word in titles]


@pytest.mark.parametrize('ending', ['', ':'])
@pytest.mark.parametrize('name', CELLS)
def test_a_study_without_a_scale_lists_the_scales(name, ending, tmp_path, capsys):
    words = [f'--config={runs.ROOT}/configs/studies/{name}.py{ending}', f'--workdir={tmp_path}/made']
    assert launch.main(['launch.py', *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ''
    assert printed.err.startswith('error: ')
    assert printed.err.count('\n') == 1
    for scale, cost in (('smoke', 'minutes'), ('cpu', 'hour'), ('full', 'days')):
        assert re.search(rf'\b{scale} \([^)]*{cost}', printed.err), printed.err
    assert not list(tmp_path.iterdir())


def test_gains_that_the_paper_states():
    """5.8 % over the baselines in non-IID scenarios is Table IV's last column but one, or no number was typed wrong."""
    gaps = [paper.TABLE_4['SemiSFL'][3][0] - paper.TABLE_4[row][3][0] for row in ('SemiFL', 'FedSwitch')]
    assert gaps == [pytest.approx(5.8), pytest.approx(5.0)]
    assert paper.TABLE_5['mlp'] == tuple(mean for mean, _ in paper.TABLE_4['SemiSFL'])
    assert [paper.TABLE_3[row]['CIFAR-10'] for row in paper.TABLE_3] == [paper.TABLE_4[row][2] for row in paper.TABLE_3]


def test_studies_share_runs():
    table2, table3, table4, cost = (
        {job.name for job in plan.jobs(study(name, 'full'))} for name in ('table2', 'table3', 'table4', 'fig5_6_cost')
    )
    assert cost < table2
    assert len(table3 & table4) == (5 + 3) * 10  # CIFAR-10 at Dir(0.1), each seed apart
    assert not table2 & table3


@pytest.mark.parametrize('scale', scales.COSTS)
def test_costs_to_an_accuracy_are_seen_after_every_round_or_every_fifth(scale):
    configs = [cell.config for cell in study('fig5_6_cost', scale).cells()]
    assert {config.eval_every for config in configs} == {5 if scale == 'mnist' else 1}
    assert {job.name for job in plan.jobs(study('fig5_6_cost', scale))} <= {
        job.name for job in plan.jobs(study('table2', scale))
    }


@pytest.mark.parametrize('scale', scales.COSTS)
def test_table_6_also_stands_under_the_settings_of_the_code(scale):
    for table in study('table6', scale).tables:
        assert table.rows == [f'alpha = {a}{end}' for end in ('', ', code') for a in ('1.5', '2', '3', '4')]
        for cell in table.cells:
            code = cell.row.endswith(', code')
            config, base, settings = cell.config, STAND_INS.get(scale, cell.base), 'code' if code else 'paper'
            assert (config.queue, config.k_s_rule) == (('single_ring', 'code') if code else ('two_level', 'auto'))
            expected = importlib.import_module(f'configs.{base}').get_config(settings)
            differing = {line.split(':')[0] for line in config_lib.differences(config, expected)}
            small = {'seeds', 'lr_rounds', 'eval_every', 'k_u', 'federation.partition', 'data.num_labeled'}
            small |= scales.CONVERGED.get(scale, {}).keys()
            full = {'cost.bandwidth_unit', 'cost.bill_model_size'}
            assert {key for key in differing - small - full if not key.startswith('frequency.')} <= {
                'data.partition_seed'
            }
            twin = table.at(cell.row.removesuffix(', code'), cell.column)
            assert (cell.published, cell.config.data) == (twin.published, twin.config.data)
        assert ('probably come from the code' in table.caption) == (scale == 'full')
    definition = study('table6', scale)
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
    for row in table.rows:
        assert [table.at(row, column).config.frequency.beta for column in table.columns] == betas
    for column, smallest in zip(table.columns, (1, 2, 3), strict=True):
        config = table.at('alpha = 4', column).config
        images = {'digits': 1437, 'fashion_mnist': 60_000, 'mnist': 60_000}[config.data.name]
        exact = config.frequency.beta * config.data.num_labeled * config.k_u / images
        assert (math.floor(exact), round(exact)) == (smallest, smallest)  # by the rules of paper and code


def test_table_6_shares_the_main_runs():
    """alpha = 1.5 and beta = 8 are the configurations' own: those cells are runs of Table II and of Fig. 9 and 12."""
    svhn, many, few = study('table6', 'full').tables
    table2, fig9, fig12 = (
        {job.name for job in plan.jobs(study(n, 'full'))} for n in ('table2', 'fig9_labels', 'fig12_ablation')
    )
    for table, others in ((svhn, table2), (many, table2), (many, fig9), (few, fig9), (few, fig12)):
        names = {job.name for job in plan.jobs_of(table.at('alpha = 1.5', 'beta = 8'))}
        assert names <= others
        assert not {job.name for job in plan.jobs_of(table.at('alpha = 1.5, code', 'beta = 8'))} & others


def test_seeds_share_a_program_where_models_are_small():
    full = study('table2', 'full').tables[0]
    assert [job.seeds for job in plan.jobs_of(full.at('SemiSFL', 'SVHN'))] == [tuple(range(10))]
    assert [job.seeds for job in plan.jobs_of(full.at('SemiSFL', 'CIFAR-10'))] == [(seed,) for seed in range(10)]


@pytest.mark.parametrize('scale', ['smoke', 'cpu'])
def test_studies_of_k_s_run_longer(scale):
    lengths = {name: {job.rounds for job in plan.jobs(study(name, scale))} for name in CELLS}
    assert [lengths.pop(name) for name in ('table6', 'fig11_frequency', 'fixed_k_s')] == [{100}] * 3
    assert set().union(*lengths.values()) == {40}


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
    with pytest.raises(UserError, match=r"table4 has no row 'FedSGD'; choose from SemiFL, "):
        full_study.part(['FedSGD'], ['Dir(1)'])
    with pytest.raises(UserError, match=r"table4 has no column 'Dir\(2\)'; choose from Dir\(1\), "):
        full_study.part(['SemiSFL'], ['Dir(2)'])
    with pytest.raises(UserError, match='table4 has no cell in these rows and columns'):
        full_study.part([], ['Dir(1)'])


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
    ],
)
def test_changes_that_make_no_sense(words, message):
    command = parse('table4', 'smoke', *words)
    with pytest.raises(UserError) as caught:
        plan.check(plan.with_given(command.config.study, command.given))
    assert message in str(caught.value)


def test_mistakes_on_the_command_line():
    with pytest.raises(UserError, match=r"unknown scale 'huge'.*smoke, cpu, digits, mnist, full"):
        parse('table4', 'huge')
    with pytest.raises(UserError, match=r'config\.study is not a key'):
        parse('table4', 'smoke', '--config.study=x')
    with pytest.raises(UserError, match='table4 is a study of many runs'):
        command_line.parse(['costs', f'--config={runs.ROOT}/configs/studies/table4.py:smoke'])


def test_a_misspelt_key_in_the_file_of_a_study_names_its_cell_and_the_nearest_key(monkeypatch):
    wrong = {'algorithm': 'fedavg', 'local.epoch': 1}
    message = r'^A / B: config\.local\.epoch is not a key; did you mean config\.local\.epochs\?$'
    with pytest.raises(UserError, match=message):
        scales.cell('smoke', 'A', 'B', 'cifar10', wrong)
    with pytest.raises(UserError, match=message):
        shvr.cell('smoke', 'A', 'B', wrong)
    monkeypatch.setitem(feddure.METHODS, 'A', wrong)
    with pytest.raises(UserError, match=message):
        feddure.cell('smoke', 'A', 'B', 'cifar10', '(IID, IID)', None)
    with pytest.raises(UserError, match=message.replace('A / B', 'A')):
        mfed.cells('smoke', 'pascal_context', 'A', wrong, ('semseg',), 'Local')


def test_runs_of_single_seeds_are_one_command():
    cell = study('table2', 'full').tables[0].at('SemiSFL', 'CIFAR-10')
    command = plan.command(plan.jobs_of(cell)[:3])
    assert command.startswith('for seed in 0 1 2; do python launch.py --config=configs/cifar10.py ')
    assert command.endswith(' --config.seed=$seed; done')
    assert command.count('config.seed=') == 1
