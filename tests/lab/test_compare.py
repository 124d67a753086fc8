"""The comparison of runs against arithmetic by hand."""

import csv
import itertools
import json
import math
import re

import pytest

from semisfl_jax import runs
from semisfl_jax.lab import compare
from tests.helpers.one_line import assert_one_line
from tests.helpers.runs import command, write_run


@pytest.fixture
def printed(capsys):
    """Lines that the command prints of some runs and flags."""

    def lines(*words):
        assert command('compare', *words) == 0
        return capsys.readouterr().out.splitlines()

    return lines


def accuracies(teacher, student=0.5):
    return {'teacher_accuracy': teacher, 'student_accuracy': [student] * len(teacher)}


def two_methods(path):
    """Of two seeds: 90 and 92 % against 80 and 85 %; the first two of twelve evaluations do not count."""
    for seed, (ours, theirs) in enumerate([(0.90, 0.80), (0.92, 0.85)]):
        yield write_run(path / f'a{seed}', seed, 'semisfl', accuracies([0.1, 0.1] + [ours] * 10))
        yield write_run(path / f'b{seed}', seed, 'supervised_only', accuracies([0.3] * 12, theirs), 'student')


def test_a_run_from_before_a_key_has_its_default(tmp_path):
    old = write_run(tmp_path / 'old', 0, 'semisfl', accuracies([0.9]))
    new = write_run(tmp_path / 'new', 1, 'semisfl', accuracies([0.9]), data__num_validation=200)
    groups = runs.group([runs.read_run(old), runs.read_run(new)])
    assert list(groups) == ['data.num_validation=0', 'data.num_validation=200']


def test_a_table_of_means_intervals_and_paired_differences(tmp_path, printed):
    # semisfl: mean of 90 and 92, standard deviation sqrt(2), over sqrt(2): 1; 80 and 85: 82.5 ± 5 / 2; differences 10
    # and 7: 8.5 ± 3 / 2. Student's t with one degree of freedom: 12.706. p of t = 8.5 / 1.5, for which this
    # distribution is Cauchy's: 1 - 2 / pi * atan(t) = 0.11
    assert printed(*two_methods(tmp_path)) == [
        '                 Seeds  Model    Test accuracy (%)               Student accuracy (%)  Teacher accuracy (%)',
        '---------------  -----  -------  ------------------------------  --------------------  --------------------',
        'SemiSFL          2      teacher  91.00 ± 1.00 [78.29, 103.71] *  50.00 ± 0.00          91.00 ± 1.00 *',
        'Supervised-only  2      student  82.50 ± 2.50 [50.73, 114.27]    82.50 ± 2.50 *        30.00 ± 0.00',
        '',
        'First    Second           First - second  95 % interval     p     p (Holm)  Seeds',
        '-------  ---------------  --------------  ----------------  ----  --------  -----',
        'SemiSFL  Supervised-only  +8.50 ± 1.50    [-10.56, +27.56]  0.11  0.11      2',
        '',
        '* the best of its column',
        'the mean is over rounds 3 to 12; see --last: SemiSFL; Supervised-only',
    ]


def test_csv_has_every_number(tmp_path, printed):
    rows = list(csv.DictReader(printed(*two_methods(tmp_path), '--format=csv')))
    assert [list(row.values())[:5] + [row['seeds']] for row in rows[3:]] == [
        ['algorithm=supervised_only', '', 'teacher_accuracy', '', 'test', '2'],
        ['algorithm=semisfl', 'algorithm=supervised_only', 'teacher_accuracy', 'student_accuracy', 'test', '2'],
    ]
    assert [float(row['mean']) for row in rows] == pytest.approx([50, 91, 82.5, 30, 8.5])
    assert [float(row['standard_error']) for row in rows] == pytest.approx([0, 1, 2.5, 0, 1.5], abs=1e-9)
    assert float(rows[-1]['p']) == pytest.approx(1 - 2 / math.pi * math.atan(8.5 / 1.5))


def test_the_best_is_bold_and_latex_has_no_character_that_it_reads_otherwise(tmp_path, printed):
    folders = [*two_methods(tmp_path)]
    markdown = printed(*folders, '--format=markdown')
    assert '| SemiSFL | 2 | teacher | **91.00 ± 1.00 [78.29, 103.71]** | 50.00 ± 0.00 | **91.00 ± 1.00** |' in markdown
    latex = printed(write_run(tmp_path / 'c', 0, 'a_b', accuracies([0.5] * 12)), *folders, '--format=latex')
    assert r'a\_b & 1 & teacher & 50.00 & 50.00 & 50.00 \\' in latex
    row = r'SemiSFL & 2 & teacher & \textbf{91.00 $\pm$ 1.00 [78.29, 103.71]} & 50.00 $\pm$ 0.00 & '
    assert any(line.startswith(row) for line in latex)
    ends = r'+8.50 $\pm$ 1.50 & [$-$10.56, +27.56] & 0.11 & 0.11 & 2 \\'
    assert f'SemiSFL & Supervised-only & {ends}' in latex
    body = ''.join(line for line in latex if not line.startswith('%'))
    assert not re.findall(r'(?<!\\)[%#_]|[±—]', body)
    assert any(line.startswith('% not compared') for line in latex)


def test_a_model_between_server_and_clients(tmp_path, printed):
    """Two evaluations of one round, and no teacher."""
    scores = {'student_accuracy': [0.5], 'after_server_accuracy': [0.75], 'supervised_accuracy': [0.25]}
    header, _, row, *_ = printed(write_run(tmp_path / 'a', 0, 'semifl', scores, 'student'))
    assert re.split('  +', header)[-2:] == ['Test accuracy (%)', 'After_server accuracy (%)']
    assert row.split() == ['SemiFL', '1', 'student', '50.00', '75.00']


def test_a_score_that_is_never_defined_makes_no_difference(tmp_path, printed):
    """As that of a task of which no test image has anything."""
    folders = []
    for (name, value), seed in itertools.product((('m_fed', 0.5), ('mfed_fl', None)), (0, 1)):
        scores, final = {'keypoints_ap': [value]}, {'final_ap': value}
        folders.append(write_run(tmp_path / f'{name}{seed}', seed, name, scores, 'keypoints', final))
    lines = printed(*folders)
    assert 'M-Fed  2      50.00 ± 0.00 [50.00, 50.00]' in lines
    assert lines[-1] == 'not compared, as a run has no score in any evaluation: M-Fed and FL per task'


def test_the_same_score_of_two_tasks_makes_no_difference(tmp_path, printed):
    folders = []
    for task, seed in itertools.product(('semseg', 'parts'), (0, 1)):
        scores, tasks = {f'{task}_miou': [0.5]}, {'data__tasks': [task]}
        folders.append(write_run(tmp_path / f'{task}{seed}', seed, 'm_fed', scores, task, {'final_miou': 0.5}, **tasks))
    why = 'not compared, as they are judged by different scores: '
    assert printed(*folders)[-1] == why + "data.tasks=['semseg'] and data.tasks=['parts']"


def test_scores_of_validation_images_have_columns_of_their_own(tmp_path, printed):
    folders = [
        write_run(tmp_path / f'{split}{seed}', seed, 'semisfl', accuracies([0.5]), data__eval_split=split)
        for split in ('test', 'validation')
        for seed in (0, 1)
    ]
    lines = printed(*folders)
    assert re.split('  +', lines[0])[3:5] == ['Test accuracy (%)', 'Validation accuracy (%)']
    assert [line.count('—') for line in lines[2:4]] == [2, 2]
    assert 'not compared, as one is scored on test images and the other on validation images' in lines[-1]


def test_runs_are_found_below_a_folder(tmp_path, printed):
    """Also those of several seeds, whose folders are not taken for runs of others."""
    deep = tmp_path / 'deep' / 'deeper'
    deep.mkdir(parents=True)
    (tmp_path / 'seeds').mkdir()
    above = [*two_methods(deep)]
    write_run(tmp_path / 'seeds' / 'seed_3', 3, 'semisfl', accuracies([0.5] * 12))
    (tmp_path / 'seeds' / 'config.json').write_text(json.dumps({'seeds': [3]}))
    assert runs.find(tmp_path) == [*sorted(above), tmp_path / 'seeds']
    assert [line.split()[:2] for line in printed(tmp_path)[2:4]] == [['SemiSFL', '3'], ['Supervised-only', '2']]


def test_what_auto_means_for_a_method_is_in_no_label(tmp_path, printed):
    """SemiSFL adapts K_s and averages uniformly, FedAvg does neither; a value that is not the method's own is named."""
    semisfl, fedavg = (
        {'k_s_rule': rule, 'local__weighting': by} for rule, by in (('paper', 'uniform'), ('fixed', 'samples'))
    )
    folders = [write_run(tmp_path / 'a', 0, 'semisfl', accuracies([0.5]), **semisfl)]
    folders.append(write_run(tmp_path / 'older', 1, 'semisfl', accuracies([0.5]), **semisfl, new=1))  # which 'a' lacks
    folders.append(write_run(tmp_path / 'b', 0, 'fedavg', accuracies([0.5]), 'student', **fedavg))
    of_user = write_run(tmp_path / 'd', 0, 'of_a_file', accuracies([0.5]), k_s_rule='fixed', local__weighting='uniform')
    assert any(line.startswith('SemiSFL    2 ') for line in printed(*folders, of_user))
    uniform = fedavg | {'local__weighting': 'uniform'}
    lines = '\n'.join(
        printed(*folders, write_run(tmp_path / 'c', 0, 'fedavg', accuracies([0.5]), 'student', **uniform))
    )
    assert re.search(r'\nFedAvg, local.weighting=samples +1 +student', lines)
    assert re.search(r'\nFedAvg, local.weighting=uniform +1 +student', lines)


def test_a_run_that_has_not_ended_is_left_out(tmp_path, capsys):
    folders = [*two_methods(tmp_path)]
    (folders[-1] / 'summary.json').unlink()
    assert command('compare', *folders) == 0
    out, err = capsys.readouterr()
    assert 'Supervised-only  1      student  80.00 ' in out
    assert err == f'warning: left out because they hold no finished run: {folders[-1]}\n'


def test_a_seed_whose_folder_is_gone_is_named(tmp_path, capsys):
    (tmp_path / 'config.json').write_text(json.dumps({'seeds': [0, 1, 2]}))
    for seed in (0, 2):
        write_run(tmp_path / f'seed_{seed}', seed, 'semisfl', accuracies([0.5]))
    assert command('compare', tmp_path) == 0
    out, err = capsys.readouterr()
    assert 'semisfl  2      teacher' in out.lower()
    assert err == f'warning: {tmp_path} lacks seed_1, which its config.json names; they are left out\n'


def test_interrupted_it_says_so_in_a_line(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, 'read_finished', interrupted)
    assert command('compare', 'runs') == 130
    assert capsys.readouterr().err == 'interrupted\n'


def test_another_score_judges_if_asked_to(tmp_path, printed, capsys):
    """A loss of 0.5 and 0.7, the lower the better, against one of 0.9 and 1.0."""
    losses = {('semisfl', 0): 0.5, ('semisfl', 1): 0.7, ('fedswitch_sl', 0): 0.9, ('fedswitch_sl', 1): 1.0}
    folders = []
    for (name, seed), loss in losses.items():
        scores = accuracies([0.5]) | {'teacher_eval_loss': [loss], 'teacher_accuracy_per_class': [[0.5, None]]}
        folders.append(write_run(tmp_path / f'{name}{seed}', seed, name, scores))
    assert 'Student accuracy (%)' in printed(*folders)[0]
    lines = printed(*folders, '--score=eval_loss')
    assert [re.split('  +', line)[3:] for line in lines[:1]] == [['Test loss']]
    assert lines[2].startswith('SemiSFL       2      teacher  0.6000 ± 0.1000 [')
    assert lines[2].endswith('] *')
    assert lines[7].startswith('SemiSFL  FedSwitch-SL  -0.3500 ± 0.0500  ')
    for score, named in {'macro_f1': 'teacher_macro_f1', 'macro': "did you mean 'macro_f1'"}.items():
        assert command('compare', *folders, f'--score={score}') == 2
        assert_one_line(capsys.readouterr().err, [named])


@pytest.mark.parametrize(
    ('words', 'named'),
    [
        (['{run}', '{run}'], 'seed 0'),
        (['{run}/none'], '{run}/none'),
        (['--format=html', '{run}'], "--format='html'"),
        (['--last=5'], 'name one or more folders'),
        (['--last=0', '{run}'], '--last=0'),
    ],
)
def test_a_mistake_is_one_line(tmp_path, capsys, words, named):
    folder = write_run(tmp_path / 'a', 0, 'semisfl', accuracies([0.5]))
    assert command('compare', *(word.format(run=folder) for word in words)) == 2
    assert_one_line(capsys.readouterr().err, [named.format(run=folder)])


def test_trivial_predictions_stand_beside_those_of_models(tmp_path, printed):
    """Depths of 0.3 and 0.4: a mean of 0.35, and a deviation of 0.1 / sqrt(2) over sqrt(2)."""

    def dense(seed, algorithm, constant):
        trivially = {'constant': {'depth_rmse': constant}, 'objects': {'saliency_iou': 0.5}}
        summary = {'final_rmse': 0.2, 'trivial_scores': trivially}
        return write_run(tmp_path / f'{algorithm}{seed}', seed, algorithm, {'depth_rmse': [0.2]}, 'depth', summary)

    folders = [dense(seed, name, 0.3 + seed / 10) for name in ('m_fed', 'mfed_fl') for seed in (0, 1)]
    lines = [re.split('  +', line) for line in printed(*folders)[:6]]
    assert lines[0] == ['', 'Seeds', 'Depth RMSE', 'Saliency IoU at the best threshold (%)']
    assert lines[2] == ['M-Fed', '2', '0.2000 ± 0.0000 [0.2000, 0.2000] *', '—']
    assert lines[4] == ['constant prediction of [M-Fed]', '2', '0.3500 ± 0.0500', '—']
    assert lines[5] == ['all objects salient of [M-Fed]', '2', '—', '50.00 ± 0.00']


def test_differences_are_over_shared_seeds_of_which_there_are_two(tmp_path, printed):
    runs_of = {('semisfl', 0): 0.5, ('semisfl', 1): 0.6, ('semisfl', 2): 0.8, ('fedswitch_sl', 0): 0.5}
    runs_of |= {('splitfed', 1): 0.5, ('splitfed', 2): 0.5, ('splitfed', 3): 0.9}
    folders = [write_run(tmp_path / f'{name}{n}', n, name, accuracies([x])) for (name, n), x in runs_of.items()]
    lines = printed(*folders)
    at = lines.index('')
    assert [re.split('  +', line) for line in lines[at + 3 : lines.index('', at + 1)]] == [
        ['SemiSFL', 'SplitFed', '+20.00 ± 10.00', '[-107.06, +147.06]', '0.3', '0.3', '2']
    ]
    pairs = 'SemiSFL and FedSwitch-SL; FedSwitch-SL and SplitFed'
    assert lines[-1] == f'not compared, as they share fewer than two seeds: {pairs}'
