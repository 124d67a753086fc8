"""What a run measures and writes down: scores, numbers and lines."""

import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import tasks
from semisfl_jax.base.errors import UserError
from semisfl_jax.costs import RoundCost
from semisfl_jax.training import evaluation, metrics


def test_numbers_by_their_shortest_digits():
    values = np.float32(0.1), jnp.float32(1) / 3, np.float32(np.nan), jnp.int32(7), np.array([0.1, np.nan])
    assert [json.dumps(metrics.plain(value)) for value in values] == ['0.1', '0.33333334', 'null', '7', '[0.1, null]']


def test_a_list_of_classes_is_an_array_and_a_number_for_each():
    lines = [{'round': 1}, {'round': 2, 'x': [0.5, None]}]
    np.testing.assert_array_equal(metrics.as_arrays(lines)['x'], [[np.nan, np.nan], [0.5, np.nan]])
    assert metrics.numbers(lines[1]) == {'round': 2, 'x/0': 0.5, 'x/1': None}


@pytest.fixture
def path(tmp_path):
    """Five lines, the last one cut short."""
    path = tmp_path / 'metrics.jsonl'
    for number in range(1, 5):
        metrics.append(path, {'round': number, 'x': number * 0.5})
    path.write_text(path.read_text() + '{"round": 5, "x"')
    return path


@pytest.mark.skipif(not Path('/dev/full').exists(), reason='needs /dev/full')
def test_what_is_full_is_named():
    with pytest.raises(OSError, match='/dev/full'):
        metrics.append(Path('/dev/full'), {'round': 1})


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


@pytest.mark.parametrize('text', ['', '{"round": 2}\n', '{"round": 1}\nhalf\n', '[1]\n[2]\n'])
def test_missing_rounds_are_noticed(tmp_path, text):
    path = tmp_path / 'metrics.jsonl'
    path.write_text(text)
    with pytest.raises(UserError, match=r'metrics\.jsonl'):
        metrics.check_rounds(path, 2)


STUDENT = tasks.Headline('student', tasks.ACCURACY)


def test_the_mean_is_over_the_last_ten_evaluations():
    records = [{'round': i, 'k_s': 100 - i, 'wall_seconds': 0.5} for i in range(1, 31)]
    accuracy = {i: ((7 * i) % 31) / 31 for i in range(2, 31, 2)}
    for i, value in accuracy.items():
        records[i - 1]['student_accuracy'] = value
        records[i - 1]['teacher_accuracy'] = 0.0
    assert not set(metrics.COSTS) & metrics.total_entries(records, STUDENT).keys()
    records[-1] |= RoundCost(1, 2, 3.0)._asdict()
    summary = metrics.total_entries(records, STUDENT)
    assert summary['final_accuracy'] == accuracy[30]
    assert summary['best_accuracy'] == max(accuracy.values())
    assert summary['mean_of_last_10_evaluations'] == pytest.approx(sum(accuracy[i] for i in range(12, 31, 2)) / 10)
    assert (summary['evaluations'], summary['rounds'], summary['k_s']) == (15, 30, 70)
    assert [summary[key] for key in metrics.COSTS] == [1, 2, 3.0]


def test_of_an_error_the_lowest_is_the_best_and_scores_of_all_tasks_are_kept():
    depth, records = tasks.Headline('depth', tasks.RMSE), []
    for number, value in enumerate((0.5, 0.25, None, 0.375), start=1):  # None: no image defines the score
        record = {'round': number, 'k_s': 0, 'wall_seconds': 0.5}
        records.append(record | {'depth_rmse': value, 'semseg_miou': value and 2 * value})
    summary = metrics.total_entries(records, depth, ['depth_rmse', 'semseg_miou'])
    assert (summary['final_rmse'], summary['best_rmse'], summary['mean_of_last_10_evaluations']) == (0.375, 0.25, 0.375)
    assert (summary['scores'], summary['evaluations']) == ({'depth_rmse': 0.375, 'semseg_miou': 0.75}, 4)
    assert metrics.read_headline(summary) == depth


def test_a_last_score_that_nothing_defines_is_not_an_earlier_one():
    record = {'k_s': 0, 'wall_seconds': 0.5}
    records = [{'round': 1, 'depth_rmse': 0.5, **record}, {'round': 2, 'depth_rmse': None, **record}]
    found = metrics.total_entries(records, tasks.Headline('depth', tasks.RMSE))
    assert (found['final_rmse'], found['best_rmse'], found['mean_of_last_10_evaluations']) == (None, 0.5, 0.5)


def test_a_run_ends_with_its_scores_and_says_of_how_many_evaluations_and_seeds():
    """Three of 0.5, 0.6 and 0.7: mean 0.6, deviation 0.1, standard error 0.1 / sqrt(3) = 0.0577."""
    one = {'headline': 'teacher', 'fake': False, 'rounds': 30, 'evaluations': 3}
    keys = 'final_accuracy', 'best_accuracy', 'mean_of_last_10_evaluations'
    shown = metrics.final_message(one | dict(zip(keys, (0.5, 0.8, 0.25), strict=True)), None)
    assert shown == 'teacher accuracy: final 50.00%, best 80.00%, mean of last 3 evaluations 25.00% (30 rounds)'
    mean = {key: {'mean': 0.6, 'standard_error': 0.1 / 3**0.5} for key in keys}
    trials = [{'seed': seed, 'k_s': 4, **dict.fromkeys(keys, 0.5 + 0.1 * seed)} for seed in range(3)]
    lines = metrics.final_message(one | mean | {'trials': trials, 'evaluations': 15}, Path('a')).splitlines()
    score = '60.00 ± 5.77%'
    assert lines[0] == (
        f'teacher accuracy: final {score}, best {score}, mean of last 10 evaluations {score} '
        '(mean ± s.e. of 3 seeds, 30 rounds)'
    )
    assert lines[-2].split() == ['2', '70.00%', '70.00%', '70.00%', '4']
    assert lines[-1] == 'outputs in a'


# --- scores on the test set: exact counts, whatever the size of the last batch


def make_evaluate(predict, like, images, labels, batch_size, task=None):
    """The compiled evaluation of a state on one set of images."""
    task = task or tasks.classification(4)
    inputs = evaluation.batched(images, {task.name: labels.astype(np.int32)}, batch_size, jax.device_put)
    return partial(evaluation.compile_evaluate(predict, like, inputs, lambda name: task), inputs)


def predict(state, images):
    """Two linear models of the mean color and a corner pixel."""
    x = images.astype(jnp.float32) / 255.0
    features = jnp.concatenate([x.mean(axis=(1, 2)), x[:, 0, 0]], axis=-1)
    return {'teacher': features @ state['w'], 'student': features @ -state['w']}


@pytest.mark.parametrize(('count', 'batch_size'), [(23, 5), (20, 5), (4, 50)])
def test_accuracy_equals_a_count_in_numpy(count, batch_size):
    rng = np.random.default_rng(count)
    images = rng.integers(0, 256, (count, 6, 6, 3), dtype=np.uint8)
    labels = rng.integers(0, 4, count)
    labels[1] = -1  # unknown
    w = rng.normal(size=(6, 4)).astype(np.float32)

    x = images.astype(np.float64) / 255.0
    logits = np.concatenate([x.mean(axis=(1, 2)), x[:, 0, 0]], axis=-1) @ w
    expected = {  # no class is -1
        'teacher': sum(int(a.argmax()) == b for a, b in zip(logits, labels, strict=True)) / (count - 1),
        'student': sum(int(a.argmin()) == b for a, b in zip(logits, labels, strict=True)) / (count - 1),
    }
    found = make_evaluate(predict, {'w': w}, images, labels, batch_size)({'w': jnp.asarray(w)})
    assert {name: scores['accuracy'] for name, scores in found.items()} == expected


def test_of_several_models_the_mean_counts_and_the_best_stands_beside_it():
    """Lower is better: the mean of |output - target| is 3 for the first model and 1 for the second."""
    score = tasks.Score('error', 'error', percent=False, higher_is_better=False)

    def count(outputs, targets, valid, sizes):
        return jnp.sum(jnp.where(valid, jnp.abs(outputs - targets), 0)), jnp.sum(valid)

    scorer = tasks.Scorer(count, lambda counts: {'error': float(counts[0].sum() / counts[1].sum()), 'other': 7.0})
    task = tasks.Task('depth', 'Depth', 1, True, loss=None, score=score, scorer=scorer)

    def predict(state, images):
        pixel = images[:, 0, 0, 0].astype(jnp.float32)
        return {'depth': (pixel - 3, pixel + 1)}

    images = np.arange(5, dtype=np.uint8).reshape(5, 1, 1, 1)
    evaluate = make_evaluate(predict, {}, images, np.arange(5), 2, task)
    assert evaluate({}) == {'depth': {'error': 2.0, 'other': 7.0, 'error_best': 1.0}}
