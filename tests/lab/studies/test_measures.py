"""What studies read off runs, by arithmetic by hand."""

import re
from pathlib import Path

import numpy as np
import pytest

from semisfl_jax import tasks
from semisfl_jax.lab.plots import collect as plots_collect
from semisfl_jax.lab.studies import measures, plan, results
from semisfl_jax.lab.studies.measures import KINDS
from semisfl_jax.lab.studies.results import JobResult
from semisfl_jax.lab.studies.spec import Measure
from semisfl_jax.runs import Run, rows
from tests.helpers.runs import ROOT
from tests.helpers.studies_words import study


def test_the_page_on_studies_has_all_measures():
    """Of a score of tasks, or of weights, as examples."""
    section = (ROOT / 'docs/studies.md').read_text().split('| measure |')[1].split('\n\n')[0]
    named = {name for line in section.splitlines()[2:] for name in re.findall(r'`(\w+)`', line.split('|')[1])}
    scores = {tasks.score_key(name, tasks.smallest(name).score.name) for name in tasks.DENSE}
    alike = scores, {kind for kind in KINDS if kind.startswith('weight_')}
    assert all(named & kinds for kinds in alike)
    assert named - set.union(*alike) == KINDS.keys() - set.union(*alike)
    assert named <= KINDS.keys()


RECORDS = [
    {'round': 1, 'student_accuracy': 0.25, 'loss_local': 2.0},
    {'round': 2, 'loss_local': 1.5, 'weight_right_visit_4': 0.25},
    {'round': 3, 'student_accuracy': 0.75, 'loss_local': 1.0, 'loss_global': 1.75},
    {'round': 4, 'student_accuracy': 0.5, 'loss_local': 0.25, 'weight_right_visit_4': 0.75},
]


def made(records):
    return Run(Path('there'), {}, 0, 'student', rows(records))


def test_measures_of_rounds():
    def read(kind, target=0.0):
        return KINDS[kind].read(made(RECORDS), target)

    assert (read('accuracy_after', 1), read('accuracy_after', 2), read('accuracy_after', 3)) == (25.0, None, 75.0)
    assert (read('accuracy_after', 9), read('loss')) == (None, 1.75)
    assert (read('weight_right_visit_4'), read('weight_right_visit_8')) == (50.0, None)
    assert (read('rounds', 0.5), read('rounds', 0.75), read('rounds', 0.9)) == (3, 3, None)
    late = made([{'round': n, 'student_accuracy': n / 20, 'mask_rate': n / 20} for n in range(1, 13)])
    assert KINDS['late_accuracy'].read(late, None) == pytest.approx(5 * 7.5)  # rounds 3 to 12
    assert KINDS['masked_out'].read(late, None) == pytest.approx(100 - 5 * 7.5)
    assert KINDS['impurity'].read(made([{'round': 1, 'pseudo_label_accuracy': 0.75}, {'round': 2}]), None) == 25
    bill = made([record | {'bytes_up': 2**30, 'bytes_down': 2**29 * record['round']} for record in RECORDS])
    assert (KINDS['gigabytes'].read(bill, 0.75), KINDS['all_gigabytes'].read(bill, None)) == (2.5, 3.0)


def test_the_deviation_of_a_seed_is_a_root_mean_square_over_rounds():
    """Round 1: .2, .4, .9 with the mean .5; round 3: .5, .5, .8 with the mean .6; round 2 was not evaluated."""
    seeds = {
        n: made([{'round': 1, 'student_accuracy': a}, {'round': 2}, {'round': 3, 'student_accuracy': b}])
        for n, (a, b) in enumerate(((0.2, 0.5), (0.4, 0.5), (0.9, 0.8)))
    }
    found = measures.values(Measure('spread'), seeds)
    expected = [(30**2 + 10**2) / 2, (10**2 + 10**2) / 2, (40**2 + 20**2) / 2]
    np.testing.assert_allclose([found[n] for n in range(3)], np.sqrt(expected))
    curve = plots_collect.curve('fed_sh', seeds, plots_collect.SPREAD)
    np.testing.assert_allclose(np.mean(expected), np.mean((100 * curve.mean) ** 2))


def run(seed, semseg, depth, edges=0.5):
    """A run whose scores after round 2 count."""
    records = [
        {'round': 1, 'semseg_miou': 0.9, 'semseg_miou_best': 1.0, 'depth_rmse': 0.9, 'edges_odsf': 0.9},
        {'round': 2, 'semseg_miou': semseg, 'semseg_miou_best': 1.0, 'depth_rmse': depth, 'edges_odsf': edges},
    ]
    return Run(Path('there'), {'data.tasks': ['semseg', 'depth', 'edges']}, seed, 'semseg', rows(records))


def test_scores_of_tasks():
    made = run(0, 0.4, 0.3)
    values = [KINDS[kind].read(made, 0.0) for kind in ('semseg_miou', 'depth_rmse', 'edges_odsf', 'parts_miou')]
    assert values == [40.0, 0.3, 50.0, None]


def test_delta_m_is_the_gain_over_the_run_of_the_same_seed():
    """Of .4 over .5, of a depth error of .2 over .4, and no change: (-20 % + 50 % + 0 %) / 3. Seed 1 has no reference,
    and over a score of 0 there is no relative gain."""
    runs_, reference = {0: run(0, 0.4, 0.2), 1: run(1, 0.4, 0.2), 2: run(2, 0.4, 0.2)}, {0: run(0, 0.5, 0.4)}
    reference[2] = run(2, 0.0, 0.4)
    assert measures.values(Measure('delta_m', reference='Local'), runs_, reference) == {0: pytest.approx(10.0)}


def test_a_gain_waits_for_its_reference():
    definition = study('mfed_table3', 'smoke')
    made = plan.make(definition, {})
    jobs = {job.name: JobResult({}, results.NOT_RUN) for job in made.jobs}
    place = 'Table 3', 'M-Fed', 'Delta_m'
    assert results.fill(made, jobs)[place].missing == 'not run yet'
    (reference,) = made.cells['Table 3', 'Local', 'Delta_m']
    jobs = dict.fromkeys(jobs, JobResult({0: run(0, 0.4, 0.2)}, '')) | {reference.name: JobResult({}, 'no memory')}
    assert results.fill(made, jobs)[place].missing == 'Local: no memory'


def test_a_score_that_is_never_defined_is_no_value():
    table = rows([{'round': 1, 'keypoints_ap': None}, {'round': 2}])
    undefined = Run(Path('there'), {}, 0, 'keypoints', table, tasks.smallest('keypoints').score)
    for kind in ('accuracy', 'late_accuracy', 'rounds', 'minutes', 'gigabytes'):
        assert KINDS[kind].read(undefined, 0.5) is None, kind
