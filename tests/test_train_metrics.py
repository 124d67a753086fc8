"""What a run writes down: numbers, lines and progress."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import tasks
from semisfl_jax.core.errors import UserError
from semisfl_jax.costs import RoundCost
from semisfl_jax.training import metrics
from semisfl_jax.training.events import Progress


@pytest.mark.parametrize(
    ('value', 'text'),
    [
        (np.float32(0.1), '0.1'),  # not 0.10000000149011612
        (jnp.float32(1) / 3, '0.33333334'),
        (0.1 + 0.2, '0.30000000000000004'),
        (np.float32(np.nan), 'null'),
        (np.float32(-np.inf), 'null'),
        (jnp.int32(7), '7'),
    ],
)
def test_numbers_by_their_shortest_digits(value, text):
    assert json.dumps(metrics.plain(value)) == text


@pytest.fixture
def path(tmp_path):
    """Five lines, the last one cut short."""
    path = tmp_path / 'metrics.jsonl'
    for number in range(1, 5):
        metrics.append(path, {'round': number, 'x': number * 0.5})
    path.write_text(path.read_text() + '{"round": 5, "x"')
    return path


def test_a_line_cut_short_is_not_read(path):
    assert metrics.read(path) == [{'round': number, 'x': number * 0.5} for number in range(1, 5)]
    assert metrics.read(path.with_name('absent')) == []


@pytest.mark.parametrize('rounds', [0, 1, 4])
def test_cutting_back_keeps_the_first_lines_byte_for_byte(path, rounds):
    expected = ''.join(f'{{"round": {number}, "x": {number * 0.5}}}\n' for number in range(1, rounds + 1))
    metrics.check_rounds(path, rounds)
    metrics.truncate(path, rounds)
    assert path.read_text() == expected
    assert [file.name for file in path.parent.iterdir()] == ['metrics.jsonl']


@pytest.mark.parametrize('text', ['', '{"round": 2}\n', '{"round": 1}\nhalf\n', '[1]\n[2]\n', '{"x": 1}\n{"x": 2}\n'])
def test_missing_rounds_are_noticed(tmp_path, text):
    path = tmp_path / 'metrics.jsonl'
    path.write_text(text)
    with pytest.raises(UserError, match=r'metrics\.jsonl(, line [12],| does not have the rounds 1 to 2)'):
        metrics.check_rounds(path, 2)


STUDENT, TEACHER = (tasks.Headline(model, tasks.ACCURACY) for model in ('student', 'teacher'))


def test_the_mean_is_over_the_last_ten_evaluations():
    records = [{'round': i, 'k_s': 100 - i, 'wall_seconds': 0.5} for i in range(1, 31)]
    accuracy = {i: ((7 * i) % 31) / 31 for i in range(2, 31, 2)}
    for i, value in accuracy.items():
        records[i - 1]['student_accuracy'] = value
        records[i - 1]['teacher_accuracy'] = 0.0
    account = metrics.RunTotals()
    for record in records:
        account = metrics.update_totals(account, RoundCost(1, 2, 3.0), record, STUDENT)
    assert metrics.totals_from_json(json.loads(json.dumps(metrics.totals_to_json(account)))) == account
    summary = metrics.total_entries(account, STUDENT, with_costs=True)
    assert summary['final_accuracy'] == accuracy[30]
    assert summary['best_accuracy'] == max(accuracy.values())
    assert summary['mean_of_last_10_evaluations'] == pytest.approx(sum(accuracy[i] for i in range(12, 31, 2)) / 10)
    assert (summary['evaluations'], summary['rounds'], summary['k_s'], summary['wall_seconds']) == (15, 30, 70, 15.0)
    assert [summary[key] for key in metrics.COSTS] == [1, 2, 3.0]
    assert not set(metrics.COSTS) & metrics.total_entries(account, STUDENT, with_costs=False).keys()


def test_of_several_trials_the_progress_shows_means(capsys):
    progress = Progress(0, 4, STUDENT)
    common = {'round': 1, 'loss_consistency': None, 'loss_clustering': 0.5}
    progress.update(  # the third trial has lost all its clients
        {'k_s': 20, 'loss_supervised': 1.0, 'loss_local': 1.0, 'student_accuracy': 0.25, **common},
        {'k_s': 13, 'loss_supervised': 2.0, 'loss_local': 2.0, 'student_accuracy': 0.5, **common},
        {'k_s': 15, 'loss_supervised': 1.5, 'loss_local': None, 'student_accuracy': 0.375, **common},
    )
    expected = 'round 1/4  sup 1.500 clust 0.500 client 1.500 student accuracy 37.50% K_s 16  '
    assert capsys.readouterr().out.startswith(expected)


def test_a_log_file_gets_a_line_per_evaluation_and_no_control_characters(capsys):
    progress = Progress(0, 4, TEACHER)
    record = {'k_s': 20, 'loss_supervised': 1.25, 'loss_consistency': None, 'loss_clustering': None}
    progress.update({'round': 1, **record})
    assert capsys.readouterr() == ('', '')
    progress.update({'round': 2, 'teacher_accuracy': 0.5, **record})
    progress.close()
    printed = capsys.readouterr()
    assert printed.out.startswith('round 2/4  sup 1.250 teacher accuracy 50.00% K_s 20  ')
    assert printed.out.endswith(' left\n')
    assert '\r' not in printed.out
    assert not printed.err


def test_of_an_error_the_lowest_is_the_best_and_scores_of_all_tasks_are_kept():
    depth = tasks.Headline('depth', tasks.RMSE)
    account = metrics.RunTotals()
    for number, value in enumerate((0.5, 0.25, None, 0.375), start=1):  # None: no image defines the score
        record = {'round': number, 'k_s': 0, 'wall_seconds': 0.5}
        record |= {'depth_rmse': value, 'semseg_miou': value and 2 * value}
        account = metrics.update_totals(account, RoundCost(), record, depth, ['depth_rmse', 'semseg_miou'])
    summary = metrics.total_entries(account, depth, with_costs=False)
    assert (summary['final_rmse'], summary['best_rmse'], summary['mean_of_last_10_evaluations']) == (0.375, 0.25, 0.375)
    assert (summary['scores'], summary['evaluations']) == ({'depth_rmse': 0.375, 'semseg_miou': 0.75}, 4)
    assert metrics.read_headline(summary) == depth
    assert metrics.totals_from_json(json.loads(json.dumps(metrics.totals_to_json(account)))) == account


def test_a_last_score_that_nothing_defines_is_not_an_earlier_one(capsys):
    depth, account = tasks.Headline('depth', tasks.RMSE), metrics.RunTotals()
    for number, value in enumerate((0.5, None), start=1):
        record = {'round': number, 'k_s': 0, 'wall_seconds': 0.5, 'depth_rmse': value}
        account = metrics.update_totals(account, RoundCost(), record, depth)
    found = metrics.total_entries(account, depth, with_costs=False)
    assert (found['final_rmse'], found['best_rmse'], found['mean_of_last_10_evaluations']) == (None, 0.5, 0.5)
    nothing = metrics.update_totals(metrics.RunTotals(), RoundCost(), record, depth)
    assert metrics.total_entries(nothing, depth, with_costs=False)['mean_of_last_10_evaluations'] is None
    progress = Progress(0, 2, depth)
    progress.update(record)
    assert 'depth RMSE n/a' in capsys.readouterr().out
