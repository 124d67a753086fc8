"""The report of made-up runs, and its figures, against arithmetic by hand."""

import csv
import dataclasses
import math
import re

import pytest

from semisfl_jax.base.errors import UserError
from semisfl_jax.lab.studies import document, engine, report, spec, statistics
from semisfl_jax.lab.studies import results as results_lib
from tests.helpers import studies_toy

STUDY = studies_toy.study()


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp('study')
    return engine.run(STUDY, {}, str(home / 'root'), studies_toy.launcher(home))


@pytest.fixture(scope='module')
def cells(folder):
    """Rows of cells.csv; of tables with several cells, the first."""
    return {row['table']: row for row in reversed(table(folder, 'cells.csv'))}


def table(folder, name):
    with (folder / name).open() as file:
        return list(csv.DictReader(file))


def test_means_and_errors(cells):
    ours = cells['Accuracies']
    assert (ours['row'], ours['column']) == ('SemiSFL', 'Dir(1)')
    # 90, 92, 94: variance 4, so 2 / sqrt(3)
    assert float(ours['mean']) == pytest.approx(92.0)
    assert float(ours['standard_error']) == pytest.approx(2.0 / math.sqrt(3.0))
    assert (ours['paper_mean'], ours['paper_standard_error']) == ('85.5', '0.5')
    assert (ours['seeds_asked'], ours['seeds_run'], ours['seeds_counted'], ours['state']) == ('3', '3', '3', 'done')
    assert ours['hardware'].startswith('toy, ')
    assert ours['command'].startswith('python launch.py --config=configs/digits.py ')


def test_the_paper_stands_beside_runs_on_its_own_data_alone(folder, cells, tmp_path):
    """The toy's runs are on digits with 40 labels, and so are its accuracies 'of the paper'; its minutes are not."""
    assert (cells['Accuracies']['paper_mean'], cells['Minutes']['paper_mean']) == ('85.5', '')
    text = (folder / 'report.md').read_text()
    assert '**92.00 ± 1.15 (3)**; paper 85.5 (0.5)' in text
    assert '86.5' not in text
    assert text.count('**Made up.**') == len(STUDY.tables) + 1
    changed = engine.run(STUDY, {'data.num_labeled': 50}, str(tmp_path / 'root'), studies_toy.launcher(tmp_path))
    assert not [name for name in ('report.md', 'cells.csv') if 'paper' in (changed / name).read_text()]
    assert b'paper' not in (changed / 'figures' / '1-values.svg').read_bytes()


def test_the_best_of_a_column_is_bold_and_an_oracle_is_none(folder):
    # SemiSFL's, which is ahead by 7 / 3 and 2
    assert re.findall(r'\*\*(\d.*?) ±', (folder / 'report.md').read_text()) == ['92.00', '80.00']
    first, second, *_ = STUDY.tables[0].cells
    config = first.config.copy_and_resolve_references()
    with config.unlocked():
        config.pseudo_labels = 'true'
    kind = {'measure': 'minutes', 'column': first.column, 'state': 'done', 'seeds_counted': 3, 'seeds_run': 3}
    means = {first.row: 1.0, second.row: 3.0, 'third': 2.0}
    rows = [{**kind, 'row': row, 'mean': mean} for row, mean in means.items()]
    cells = (dataclasses.replace(first, config=config), second, second)
    made = dataclasses.replace(STUDY.tables[0], cells=cells)
    assert [*report._best(made, rows)] == [('third', first.column)]  # the lowest, as it is a time


def test_the_way_to_a_target(folder, cells):
    # 82 %: seed 0 gets there in round 4 (80 % in round 3), seeds 1 and 2 in round 3, a minute a round
    assert float(cells['Minutes']['mean']) == pytest.approx((4 + 3 + 3) / 3)
    # 93 %: seed 2 alone, in round 4, at two gigabytes a round
    (gigabytes,) = (float(row['value']) for row in table(folder, 'runs.csv') if row['table'] == 'Gigabytes')
    assert gigabytes == pytest.approx(8.0)
    assert (cells['Gigabytes']['seeds_counted'], cells['Gigabytes']['mean']) == ('1', '')  # too few for a mean


def test_paired_differences(folder):
    rows = {row['column']: row for row in table(folder, 'differences.csv')}
    # 2, 1 and 4: mean 7 / 3, variance 7 / 3; t = sqrt(7), and with 2 degrees of freedom p = 1 - t / sqrt(t^2 + 2)
    assert float(rows['Dir(1)']['mean']) == pytest.approx(7.0 / 3.0)
    assert float(rows['Dir(1)']['standard_error']) == pytest.approx(math.sqrt(7.0) / 3.0)
    assert float(rows['Dir(1)']['p']) == pytest.approx(1.0 - math.sqrt(7.0) / 3.0)
    # always 2: no scatter, and so no test
    assert (float(rows['Dir(0.5)']['mean']), rows['Dir(0.5)']['p']) == (pytest.approx(2.0), '')
    # 4.303 standard errors on both sides, the 97.5 % quantile of t with 2 degrees of freedom
    assert float(rows['Dir(1)']['low']) == pytest.approx(7.0 / 3.0 - 4.30265 * math.sqrt(7.0) / 3.0, abs=1e-4)
    assert float(rows['Dir(1)']['deviation']) == pytest.approx(math.sqrt(7.0 / 3.0))
    assert '+2.33 [-1.46, +6.13], p = 0.12 (3)' in (folder / 'report.md').read_text()


def test_several_tests_are_corrected_for_their_number():
    # Holm: 3 * 0.01, 2 * 0.03, 1 * 0.04, none below the one before
    corrected = statistics.corrected([0.01, 0.04, math.nan, 0.03])
    assert corrected == pytest.approx([0.03, 0.06, math.nan, 0.06], nan_ok=True)
    assert statistics.corrected([0.6, 0.7]) == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(('effect', 'seeds'), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10), (40.0, 3)])
def test_seeds_that_a_difference_needs(effect, seeds):
    """Pairs for a power of 80 % at 5 %, two-sided, as G*Power gives them (Faul et al., 2007)."""
    assert statistics.seeds_needed(1.0 / effect) == seeds


def test_power_is_told_before_a_study_and_in_its_report(folder, tmp_path):
    # deviations of the differences: sqrt(7 / 3) points; the others are all equal, so of these there is no test
    assert (
        'standard deviation of 1.53 points, so detecting a difference of one point takes 21 seeds (power 80 %'
        in (folder / 'report.md').read_text()
    )
    study = dataclasses.replace(STUDY, pilot=spec.Pilot(2.0, 'an earlier study'))
    line = statistics.power_beforehand(study, studies_toy.results(study, tmp_path))
    assert re.search('2.00 points .* 34 seeds.* has 3$', line)
    cells = [dataclasses.replace(cell, measure=spec.Measure('masked_out')) for cell in STUDY.tables[0].cells]
    shares = dataclasses.replace(STUDY.tables[0], title='Shares', cells=tuple(cells))  # in percent, but no accuracy
    study = dataclasses.replace(study, tables=(*STUDY.tables, shares))
    assert '1.53 points' in statistics.power_beforehand(study, studies_toy.results(study, folder.parent))


def test_the_budget_sums_what_the_processes_of_runs_took(folder, tmp_path):
    """Of the toy's runs nothing is known of their rounds, and their processes took seconds."""
    (row,) = table(folder, 'budget.csv')
    assert (row['runs'], row['hours_of_rounds'], row['processor_hours']) == ('4', '', '0.0')
    assert f'| 4 | {document.NOTHING} | 0.0 |' in (folder / 'report.md').read_text()
    (tmp_path / 'metrics.jsonl').touch()
    for machine, seconds in (('here', 1.5), ('there', 9.0), ('here', 2.0)):  # it was stopped twice
        entry = {'commit': 'abc', 'machine': machine}
        results_lib.record_provenance(tmp_path, entry)
        results_lib.record_provenance(tmp_path, entry, seconds)
    assert [entry['processor_seconds'] for entry in results_lib.read_provenance(tmp_path)] == [3.5, 9.0]
    for damaged in ('{}', '[{}]', '["x"]', '[{"commit": "a", "machine": "b", "processor_seconds": "1"}]'):
        (tmp_path / results_lib.PROVENANCE).write_text(damaged)
        with pytest.raises(UserError, match=r'provenance\.json was modified'):
            results_lib.read_provenance(tmp_path)
    assert (results_lib.hours([3600.0, 5400.0]), results_lib.hours([3600.0, None])) == (2.5, None)


def test_differences_over_shared_seeds_alone():
    assert statistics.paired({0: 1.0}, {1: 1.0}) is None
    lone = statistics.paired({0: 5.0, 1: 1.0}, {1: 3.0, 2: 9.0})
    assert (lone.mean, lone.seeds) == (-2.0, 1)
    assert math.isnan(lone.error)
    assert math.isnan(lone.p)


def test_html_needs_no_other_file(folder):
    text = (folder / 'report.html').read_text()
    assert not re.search(r'(src|href)="(?!data:)|@import|url\(', text)
    shown = re.findall(r'<figure style="width: \d+px"><img src="data:image/png.*?><figcaption>(.+?)</figcaption>', text)
    assert len(shown) == len(list((folder / 'figures').glob('*.png'))) >= 4
    assert shown[0] == 'All values with standard errors, hollow: the paper. Made up.'
