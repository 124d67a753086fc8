"""The report of made-up runs, and its figures, against arithmetic by hand."""

import csv
import dataclasses
import math
import re
import shlex

import numpy as np
import pytest

from semisfl_jax.config import command_line
from semisfl_jax.plots import curves, style
from semisfl_jax.studies import collect, document, engine, figures, plan, spec, statistics
from tests import runs, studies_toy

STUDY = studies_toy.study()


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp('study')
    return engine.run(STUDY, {}, str(home / 'root'), studies_toy.launcher(home))


@pytest.fixture(scope='module')
def results(folder):
    return collect.find(STUDY, folder.parent, {})


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
    assert '92.00 ± 1.15 (3); paper 85.5 (0.5)' in text
    assert '86.5' not in text
    assert text.count('**Made up.**') == len(STUDY.tables) + 1
    changed = engine.run(STUDY, {'data.num_labeled': 50}, str(tmp_path / 'root'), studies_toy.launcher(tmp_path))
    assert not [name for name in ('report.md', 'cells.csv') if 'paper' in (changed / name).read_text()]
    assert b'paper' not in (changed / 'figures' / '1-values.svg').read_bytes()


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
    assert 'spread by 1.53 points in the median and 1.53 at most' in (folder / 'report.md').read_text()
    study = dataclasses.replace(STUDY, pilot=spec.Pilot(2.0, 'an earlier study'))
    line = statistics.power_beforehand(study, collect.find(study, tmp_path, {}))
    assert re.search('2.00 points .* 34 seeds.* has 3$', line)
    cells = [dataclasses.replace(cell, measure=spec.Measure('masked_out')) for cell in STUDY.tables[0].cells]
    shares = dataclasses.replace(STUDY.tables[0], title='Shares', cells=tuple(cells))  # in percent, but no accuracy
    study = dataclasses.replace(study, tables=(*STUDY.tables, shares))
    assert '1.53 points' in statistics.power_beforehand(study, collect.find(study, folder.parent, {}))


def test_the_budget_sums_what_the_processes_of_runs_took(folder, tmp_path):
    """Of the toy's runs nothing is known of their rounds, and their processes took seconds."""
    (row,) = table(folder, 'budget.csv')
    assert (row['runs'], row['hours_of_rounds'], row['processor_hours']) == ('4', '', '0.0')
    assert f'| 4 | {document.NOTHING} | 0.0 |' in (folder / 'report.md').read_text()
    (tmp_path / 'metrics.jsonl').touch()
    for machine, seconds in (('here', 1.5), ('there', 9.0), ('here', 2.0)):  # it was stopped twice
        entry = {'commit': 'abc', 'machine': machine}
        collect.record_provenance(tmp_path, entry)
        collect.record_provenance(tmp_path, entry, seconds)
    assert [entry['processor_seconds'] for entry in collect.read_provenance(tmp_path)] == [3.5, 9.0]
    assert (collect._hours([3600.0, 5400.0]), collect._hours([3600.0, None])) == (2.5, None)


def test_differences_over_shared_seeds_alone():
    assert statistics.paired({0: 1.0}, {1: 1.0}) is None
    lone = statistics.paired({0: 5.0, 1: 1.0}, {1: 3.0, 2: 9.0})
    assert (lone.mean, lone.seeds) == (-2.0, 1)
    assert math.isnan(lone.error)
    assert math.isnan(lone.p)


def test_html_needs_no_other_file(folder):
    text = (folder / 'report.html').read_text()
    assert not re.search(r'(src|href)="(?!data:)|@import|url\(', text)
    assert text.count('src="data:image/png;base64,') == len(list((folder / 'figures').glob('*.png'))) >= 4


def test_figures_of_an_earlier_report_go_and_nothing_else(tmp_path):
    (tmp_path / 'figures' / 'mine').mkdir(parents=True)
    for name in ('1-old.png', '1-old.svg', 'notes.txt'):
        (tmp_path / 'figures' / name).touch()
    new = document.Figure('1-new', '', 'new', bytes(24), b'')
    document.write(tmp_path, [new], {}, [new])
    names = sorted(path.name for path in (tmp_path / 'figures').iterdir())
    assert names == ['1-new.png', '1-new.svg', 'mine', 'notes.txt']


def test_a_command_can_be_given_to_a_shell():
    changes = {'data.image_folder': '/a b/$c', 'data.tasks': (), 'model.name': 'cnn', 'data.client_labels': 3}
    one = plan.Job('x', 'digits', changes | {'seed': 1}, (1,), 5)
    options = ['--config.data.client_labels=3', '--config.data.image_folder=/a b/$c', '--config.data.tasks=()']
    words = ['python', 'launch.py', '--config=configs/digits.py', *options, '--config.model.name=cnn']
    assert shlex.split(one.command()) == [*words, '--config.seed=1']
    loop = plan.command([one, one._replace(changes=changes | {'seed': 2}, seeds=(2,))])
    assert shlex.split(loop) == ['for', 'seed', 'in', '1', '2;', 'do', *words, '--config.seed=$seed;', 'done']
    several = plan.Job('x', 'digits', {'data.tasks': ('semseg', 'edges')}, (1,), 5)
    assert several.command().endswith(''' "--config.data.tasks='semseg','edges'"''')
    scenes = f'--config={runs.ROOT}/configs/digit_scenes.py'
    assert command_line.parse(['launch.py', scenes, '--config.data.tasks=()']).config.data.tasks == ()


# --- figures


def test_points_draw_means_errors_and_the_paper():
    with style.context():
        _, ax = style.figure()
        ours = {
            'x': (np.array([1.0, 2.0]), np.array([0.5, np.nan])),
            'y': (np.array([3.0, np.nan]), np.array([0.25, np.nan])),
        }
        curves.table(ax, ['a', 'b'], ours, {'x': np.array([4.0, np.nan])}, 'unit')
    (first, _, bars), (second, _, _), _ = (container.lines for container in ax.containers)
    np.testing.assert_allclose(first.get_ydata(), [1.0, 2.0])
    np.testing.assert_allclose(second.get_ydata(), [3.0, np.nan])
    segments = bars[0].get_segments()
    np.testing.assert_allclose(segments[0][:, 1], [0.5, 1.5])
    np.testing.assert_allclose(segments[1][:, 1], [2.0, 2.0])  # one seed, no error
    hollow = [line for line in ax.lines if line.get_markerfacecolor() == 'none' and len(line.get_ydata())]
    np.testing.assert_allclose(hollow[0].get_ydata(), [4.0, np.nan])


def test_values_are_those_of_the_runs_beside_the_paper(results, monkeypatch):
    calls = []
    monkeypatch.setattr(curves, 'table', lambda *arguments: calls.append(arguments))
    drawn = list(figures.draw(STUDY, results))
    assert [figure.name for figure in drawn] == [
        *('1-values', '1-accuracy_rounds-Dir-1', '1-accuracy_rounds-Dir-0.5'),
        *('2-values', '3-values'),
    ]
    _, columns, ours, paper, unit = calls[0]
    assert columns == ['Dir(1)', 'Dir(0.5)']
    np.testing.assert_allclose(ours['SemiSFL'][0], [92.0, 80.0])  # means of studies_toy.ACCURACY
    np.testing.assert_allclose(ours['SemiSFL'][1], [2.0 / 3**0.5, 0.0], atol=1e-9)  # 90, 92, 94 and 80, 80, 80
    np.testing.assert_allclose(paper['FedSwitch'], [85.5, 85.5])
    assert unit == 'Test accuracy after the last round (%)'
    assert np.isnan(calls[1][3]['SemiSFL']).all()  # minutes: the paper's are of CIFAR-10


def test_a_row_may_have_the_name_of_a_method(results):
    table, lower = (
        STUDY.tables[0],
        {(title, row.lower(), column): found for (title, row, column), found in results.items()},
    )
    cells = tuple(dataclasses.replace(cell, row=cell.row.lower()) for cell in table.cells)
    with style.context():
        drawn = figures._curves('accuracy_rounds', dataclasses.replace(table, cells=cells), lower)
        for _, _, figure in drawn:
            assert {line.get_label() for line in figure.axes[0].lines} == {'SemiSFL', 'FedSwitch'}


@pytest.mark.parametrize(
    ('name', 'x', 'y'),
    [  # two times a GiB and a minute a round (studies_toy); 90, 92 and 94 % deviate by 2 points
        ('accuracy_gigabytes', [2, 4, 6, 8], [62, 72, 82, 92]),
        ('accuracy_minutes', [1, 2, 3, 4], [62, 72, 82, 92]),
        ('k_s', [1, 2, 3, 4], [8] * 4),
        ('spread_rounds', [1, 2, 3, 4], [(8 / 3) ** 0.5] * 4),
    ],
)
def test_a_figure_shows_what_its_name_says(results, name, x, y):
    groups = {'SemiSFL': results['Accuracies', 'SemiSFL', 'Dir(1)'].runs}
    with style.context():
        drawing, _ = figures._of_column(name, groups, style.looks(list(groups)), '')
        line = drawing.axes[0].lines[0]
    np.testing.assert_allclose(line.get_xdata(), x)
    np.testing.assert_allclose(line.get_ydata(), y)


def test_a_panel_has_means_of_successive_evaluations():
    numbers = np.arange(5.0)
    curve = curves.Curve('a', numbers, 10 * numbers, np.array([1.0, 3.0, 2.0, 2.0, 5.0]))
    found = curves.binned(curve, 3)  # pairs, and what is left
    np.testing.assert_allclose(found.x, [0.5, 2.5, 4.0])
    np.testing.assert_allclose(found.mean, [5.0, 25.0, 40.0])
    np.testing.assert_allclose(found.error, [2.0, 2.0, 5.0])
    np.testing.assert_allclose(curves.binned(curve, 5).mean, curve.mean)


def test_a_method_without_traffic_is_a_level_beside_the_others(folder):
    """The panels of rounds, bytes and minutes; costs are taken from one of two made-up methods."""
    found = collect.find(STUDY, folder.parent, {})
    groups = {row: found['Accuracies', row, 'Dir(1)'].runs for row in ('SemiSFL', 'FedSwitch')}
    for run in groups['FedSwitch'].values():
        for record in run.records:
            record.update(bytes_up=0, bytes_down=0, simulated_seconds=0.0)
    with style.context():
        figure, _ = figures._prices(groups, style.looks(list(groups)))
    assert [ax.get_xlabel() for ax in figure.axes] == ['Round', 'Traffic (GiB)', 'Simulated time (min)']
    assert [len(ax.lines) for ax in figure.axes] == [2, 2, 2]
    for ax in figure.axes[1:]:
        moving, level = ax.lines
        assert len(moving.get_xdata()) == 4
        np.testing.assert_allclose(level.get_ydata(), (88 + 91 + 90) / 3)
    np.testing.assert_allclose(figure.axes[1].lines[0].get_xdata(), [2, 4, 6, 8])  # GiB: one up and one down in a round
