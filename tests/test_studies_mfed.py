"""The studies of M-Fed: all resolve at all scales, with the paper's protocol and numbers; gains over a reference."""

import shlex
from pathlib import Path

import pytest

from configs.studies import mfed
from semisfl_jax import config as config_lib
from semisfl_jax.config import command_line
from semisfl_jax.runs import Run
from semisfl_jax.studies import collect, measures, plan, report, spec
from semisfl_jax.studies.collect import CellResult
from semisfl_jax.studies.spec import Measure
from tests import runs
from tests.studies_cells import CELLS_OF_MFED
from tests.studies_words import parse, study

# Runs of three seeds, which share a program but for those of large models: Local, FL, and M-Fed for every lambda_0 with
# many images; FL and M-Fed for every lambda_0 with few. M-Fed's own lambda_0 is one of them
RUNS = {
    'mfed_table2': {'smoke': 2 + 2 + 1 + 2, 'cpu': 2 + 2 + 1 + 2, 'full': 3 * (2 + 4 + 1 + 4)},
    'mfed_table3': {'smoke': 3, 'cpu': 3, 'full': 3 * 2 * 3},
}


@pytest.mark.parametrize('scale', mfed.COSTS)
@pytest.mark.parametrize('name', CELLS_OF_MFED)
def test_every_study_resolves(name, scale):
    definition = study(name, scale)
    spec.check(definition)
    plan.check(definition)
    assert (definition.name, definition.scale, bool(definition.warning)) == (name, scale, scale != 'full')
    made = list(definition.cells())
    assert len(made) == CELLS_OF_MFED[name][scale]
    for table in definition.tables:
        assert table.reference in table.rows
        assert {cell.measure.reference for cell in table.cells} <= {'', *table.rows}
        places = [(cell.row, cell.column) for cell in table.cells]
        assert len(set(places)) == len(places)
    jobs = plan.jobs(definition)
    assert len(jobs) == RUNS[name][scale]  # the columns of a row read the same runs
    for job in jobs[:: len(jobs) // 3 + 1]:  # the command that the report gives makes the run of the cell
        config = command_line.parse(['launch.py', f'--config={runs.ROOT}/configs/{job.base}.py', *job.options()]).config
        cell = next(cell for cell in made if job in plan.jobs_of(cell))
        different = config_lib.differences(config_lib.resolve(config), config_lib.resolve(cell.config))
        assert [line for line in different if not line.startswith(('seed:', 'seeds:'))] == []
        assert config.rounds == cell.config.rounds


@pytest.mark.parametrize(('name', 'clients', 'counts'), [('mfed_table2', 20, (5, 20)), ('mfed_table3', 10, (1, 12))])
def test_the_protocol(name, clients, counts):
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


@pytest.mark.parametrize(
    ('name', 'table', 'row', 'column', 'number'),
    [
        ('mfed_table2', 0, 'Local', 'Segmentation', 42.07),
        ('mfed_table2', 0, 'FL per task', 'Parts', 55.76),
        ('mfed_table2', 0, 'M-Fed', 'Saliency', 61.56),
        ('mfed_table2', 0, 'M-Fed', 'Edges', 66.20),
        ('mfed_table2', 0, 'FL per task', 'Delta_m', 11.73),
        ('mfed_table2', 0, 'M-Fed', 'Delta_m', 12.38),
        ('mfed_table3', 0, 'FL per task', 'Stuff', 7.25),
        ('mfed_table3', 0, 'M-Fed', 'Stuff', 7.40),
        ('mfed_table3', 1, 'Local', 'Stuff', 15.45),
        ('mfed_table3', 1, 'M-Fed', 'Stuff', 16.62),
    ],
)
def test_numbers_of_the_paper(name, table, row, column, number):
    paper = study(name, 'full').tables[table].at(row, column).paper
    assert paper.mean == number
    assert report._paper(paper, '%') == f'{number:.2f}'


def test_numbers_stand_beside_the_papers_data_alone():
    full = study('mfed_table2', 'full')
    of_methods = [cell for cell in full.tables[0].cells if not cell.measure.trivial]
    assert [cell.paper is not None for cell in of_methods] == [True] * 15
    assert not any(cell.paper for cell in full.tables[1].cells)
    assert not any(cell.paper for cell in plan.with_given(full, {'data.fake': True}).cells())
    fewer = plan.with_given(full.part(full.tables[0].rows, full.tables[0].columns), {'data.num_unlabeled': 900})
    assert not any(cell.paper for cell in fewer.cells())
    assert {cell.column for cell in study('mfed_table3', 'full').cells() if cell.paper} == {'Stuff'}
    for name in CELLS_OF_MFED:
        for scale in ('smoke', 'cpu'):
            assert not any(cell.paper for cell in study(name, scale).cells())


def run(seed, semseg, depth, edges=0.5):
    """A run whose scores after round 2 count."""
    records = [
        {'round': 1, 'semseg_miou': 0.9, 'semseg_miou_best': 1.0, 'depth_rmse': 0.9, 'edges_odsf': 0.9},
        {'round': 2, 'semseg_miou': semseg, 'semseg_miou_best': 1.0, 'depth_rmse': depth, 'edges_odsf': edges},
    ]
    return Run(Path('there'), {'data.tasks': ['semseg', 'depth', 'edges']}, seed, 'semseg', records)


def test_scores_of_tasks():
    made = run(0, 0.4, 0.3)
    values = [
        measures.KINDS[kind].read(made, 0.0) for kind in ('semseg_miou', 'depth_rmse', 'edges_odsf', 'parts_miou')
    ]
    assert values == [40.0, 0.3, 50.0, None]
    assert (measures.KINDS['semseg_miou'].unit, measures.KINDS['saliency_iou'].group) == (
        '%',
        'score after the last round',
    )


def test_delta_m_is_the_gain_over_the_run_of_the_same_seed():
    """Of .4 over .5, of a depth error of .2 over .4, and no change: (-20 % + 50 % + 0 %) / 3. Seed 1 has no reference,
    and over a score of 0 there is no relative gain."""
    runs_, reference = {0: run(0, 0.4, 0.2), 1: run(1, 0.4, 0.2), 2: run(2, 0.4, 0.2)}, {0: run(0, 0.5, 0.4)}
    found = CellResult(runs_, (0, 1, 2), [], '', [], reference | {2: run(2, 0.0, 0.4)})
    assert collect.values(found, Measure('delta_m', reference='Local')) == {0: pytest.approx(10.0)}


def test_a_gain_waits_for_its_reference(tmp_path, monkeypatch):
    definition = study('mfed_table3', 'smoke')
    found = collect.find(definition, tmp_path, {})
    assert found['Table 3: stuff', 'M-Fed', 'Delta_m'].missing == 'not run yet'
    reference = plan.jobs_of(definition.tables[0].at('Local', 'Stuff'))[0]
    found = collect.find(definition, tmp_path, {reference.name: 'no memory'})
    assert found['Table 3: stuff', 'M-Fed', 'Stuff'].missing == 'not run yet'
    others = ({0: run(0, 0.4, 0.2)}, [], '')
    monkeypatch.setattr(collect, '_read', lambda _, job: ({}, [], '') if job == reference else others)
    found = collect.find(definition, tmp_path, {reference.name: 'no memory'})
    assert found['Table 3: stuff', 'M-Fed', 'Delta_m'].missing == 'Local: failed: no memory'


def test_a_shell_reads_the_command():
    """The names of tasks stay in quotes, as on a command line that is typed."""
    job = plan.jobs(study('mfed_table3', 'smoke'))[0]
    words = shlex.split(job.command())
    assert "--config.data.tasks='stuff','semseg'" in words
    assert words[3:] == job.options()


def test_a_gain_over_a_row_that_is_left_out_is_left_out():
    command = parse('mfed_table2', 'smoke')
    part = command.config.study.part(['M-Fed', 'FL per task'], command.config.study.tables[0].columns)
    assert part.tables[0].columns == ['Segmentation', 'Parts', 'Saliency', 'Edges']
