"""The report of made-up runs against arithmetic by hand."""

import csv
import dataclasses
import math
import re
import shlex

import pytest

from semisfl_jax.config import command_line
from semisfl_jax.studies import collect, document, engine, plan, report, spec, statistics
from tests import runs, studies_toy


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp('study')
    return engine.run(studies_toy.study(), {}, str(home / 'root'), studies_toy.launcher(home))


def table(folder, name):
    with (folder / name).open() as file:
        return list(csv.DictReader(file))


def test_means_and_errors(folder):
    cells = {(row['table'], row['row'], row['column']): row for row in table(folder, 'cells.csv')}
    ours = cells['Accuracies', 'SemiSFL', 'Dir(1)']
    # 90, 92, 94: variance 4, so 2 / sqrt(3)
    assert float(ours['mean']) == pytest.approx(92.0)
    assert float(ours['standard_error']) == pytest.approx(2.0 / math.sqrt(3.0))
    assert (ours['paper_mean'], ours['paper_standard_error']) == ('85.5', '0.5')
    assert (ours['seeds_asked'], ours['seeds_run'], ours['seeds_counted'], ours['state']) == ('3', '3', '3', 'done')
    assert ours['hardware'].startswith('toy, ')
    assert ours['command'].startswith('python launch.py --config=configs/digits.py ')


def test_the_paper_stands_beside_runs_on_its_own_data_alone(folder):
    """The toy's runs are on digits with 40 labels, and so are its accuracies 'of the paper'; its minutes are not."""
    cells = {row['table']: row for row in table(folder, 'cells.csv')}
    assert (cells['Accuracies']['paper_mean'], cells['Minutes']['paper_mean']) == ('85.5', '')
    text = (folder / 'report.md').read_text()
    accuracies, minutes = (part for part in text.split('\n## ') if part.startswith(('Accuracies', 'Minutes')))
    assert '92.00 ± 1.15 (3); paper 85.5 (0.5)' in accuracies
    assert 'paper: its mean' in accuracies
    assert '86.5' not in text
    assert 'paper' not in minutes
    assert '6 of 6 cells are done.' in text
    for part in text.split('\n## ')[:-1]:  # the last one lists commands
        assert '**Made up.**' in part


@pytest.mark.parametrize('changes', [{'data.num_labeled': 50}, {'data.fake': True}])
def test_changed_data_take_the_paper_out_of_a_report(tmp_path, changes):
    made = engine.run(studies_toy.study(), changes, str(tmp_path / 'root'), studies_toy.launcher(tmp_path))
    assert 'paper' not in (made / 'report.md').read_text()
    assert 'paper' not in (made / 'cells.csv').read_text()
    assert b'paper' not in (made / 'figures' / '1-values.svg').read_bytes()


def test_the_way_to_a_target(folder):
    cells = {row['table']: row for row in table(folder, 'cells.csv')}
    # 82 %: seed 0 gets there in round 4 (80 % in round 3), seeds 1 and 2 in round 3, a minute a round
    assert float(cells['Minutes']['mean']) == pytest.approx((4 + 3 + 3) / 3)
    # 93 %: seed 2 alone, in round 4, at two gigabytes a round
    (gigabytes,) = (float(row['value']) for row in table(folder, 'runs.csv') if row['table'] == 'Gigabytes')
    assert gigabytes == pytest.approx(8.0)
    assert (cells['Gigabytes']['seeds_counted'], cells['Gigabytes']['mean']) == ('1', '')  # too few for a mean
    assert '8, 1 of 3 seeds reached 93 %' in (folder / 'report.md').read_text()


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
    text = (folder / 'report.md').read_text()
    assert '+2.33 [-1.46, +6.13], p = 0.12 (3)' in text
    assert '+2.00 [+2.00, +2.00], no test (3)' in text


def test_several_tests_are_corrected_for_their_number():
    # Holm: 3 * 0.01, 2 * 0.03, 1 * 0.04, none below the one before
    assert statistics.corrected([0.01, 0.04, math.nan, 0.03]) == pytest.approx(
        [0.03, 0.06, math.nan, 0.06], nan_ok=True
    )
    assert statistics.corrected([0.6, 0.7]) == pytest.approx([1.0, 1.0])
    assert statistics.corrected([]) == []


@pytest.mark.parametrize(('effect', 'seeds'), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10), (40.0, 3)])
def test_seeds_that_a_difference_needs(effect, seeds):
    """Pairs for a power of 80 % at 5 %, two-sided, as G*Power gives them (Faul et al., 2007)."""
    assert statistics.seeds_needed(1.0 / effect) == seeds
    assert statistics.seeds_needed(3.0 / effect, difference=3.0) == seeds
    assert statistics.seeds_needed(0.0) == 3


def test_power_is_told_before_a_study_and_in_its_report(tmp_path):
    said, study = [], dataclasses.replace(studies_toy.study(), pilot=spec.Pilot(2.0, 'an earlier study'))
    arguments = (study, {}, str(tmp_path / 'root'), studies_toy.launcher(tmp_path), said.append)
    folder = engine.run(*arguments)
    # deviations of the differences: sqrt(7 / 3) and 0 points, half of the first in the median
    power = (
        'Differences of pairs spread by 0.76 points in the median and 1.53 at most, so a difference of one point needs'
    )
    assert power in (folder / 'report.md').read_text()
    (line,) = (line for line in said if line.startswith('power'))
    assert 'spread by 2.00 points (an earlier study), so a difference of one point needs 34 seeds' in line
    assert line.endswith('the study has 3')
    engine.run(*arguments)
    assert sum(line.startswith('power') for line in said) == 1  # nothing is left to run


def test_differences_over_shared_seeds_alone():
    assert statistics.paired({0: 1.0}, {1: 1.0}) is None
    lone = statistics.paired({0: 5.0, 1: 1.0}, {1: 3.0, 2: 9.0})
    assert (lone.mean, lone.seeds) == (-2.0, 1)
    assert math.isnan(lone.error)
    assert math.isnan(lone.p)
    assert statistics.summary({}) is None


def test_html_needs_no_other_file(folder):
    text = (folder / 'report.html').read_text()
    assert not re.search(r'(src|href)="(?!data:)|@import|url\(', text)
    assert text.count('src="data:image/png;base64,') == len(list((folder / 'figures').glob('*.png'))) >= 4


def test_text_of_runs_is_no_markup():
    blocks = [document.Paragraph('a < b & c'), document.Grid(('x',), (('<i>|</i>',),))]
    page = document.page([document.Heading(1, '<t>'), *blocks])
    assert '<p>a &lt; b &amp; c</p>' in page
    assert '<td>&lt;i&gt;|&lt;/i&gt;</td>' in page
    assert '<title>&lt;t&gt;</title>' in page
    assert '| <i>\\|</i> |' in document.markdown(blocks)


def test_figures_of_an_earlier_report_go_and_nothing_else(tmp_path):
    figures = tmp_path / 'figures'
    (figures / 'mine').mkdir(parents=True)
    for name in ('1-old.png', '1-old.svg', 'notes.txt'):
        (figures / name).touch()
    new = document.Figure('1-new', '', 'new', bytes(24), b'')
    document.write(tmp_path, [new], {}, [new])
    assert sorted(path.name for path in figures.iterdir()) == ['1-new.png', '1-new.svg', 'mine', 'notes.txt']


def test_a_command_can_be_given_to_a_shell():
    changes = {'data.image_folder': '/a b/$c', 'data.tasks': (), 'model.name': 'cnn', 'data.client_labels': 3}
    one = plan.Job('x', 'digits', changes | {'seed': 1}, (1,), 5)
    options = ['--config.data.client_labels=3', '--config.data.image_folder=/a b/$c', '--config.data.tasks=()']
    options += ['--config.model.name=cnn']
    words = ['python', 'launch.py', '--config=configs/digits.py', *options]
    assert shlex.split(one.command()) == [*words, '--config.seed=1']
    loop = plan.command([one, one._replace(changes=changes | {'seed': 2}, seeds=(2,))])
    assert shlex.split(loop) == ['for', 'seed', 'in', '1', '2;', 'do', *words, '--config.seed=$seed;', 'done']
    several = plan.Job('x', 'digits', {'data.tasks': ('semseg', 'edges')}, (1,), 5)
    assert several.command().endswith(''' "--config.data.tasks='semseg','edges'"''')
    scenes = f'--config={runs.ROOT}/configs/digit_scenes.py'
    assert command_line.parse(['launch.py', scenes, '--config.data.tasks=()']).config.data.tasks == ()


def test_nothing_run_yet(tmp_path):
    study = studies_toy.study()
    results = collect.find(study, tmp_path, {})
    report.write(tmp_path / 'report', study, results)
    text = (tmp_path / 'report' / 'report.md').read_text()
    assert '0 of 6 cells are done' in text
    assert 'not run yet; paper 85.5 (0.5)' in text
    assert not list((tmp_path / 'report' / 'figures').iterdir())
