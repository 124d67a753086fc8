"""Scores on the test set: exact counts, whatever the size of the last batch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import tasks
from semisfl_jax.training import evaluation as evaluate_lib


def make_evaluate(predict, like, images, labels, batch_size, task=None):
    """The compiled evaluation of a state on one set of images."""
    task = task or tasks.classification(4)
    inputs = evaluate_lib.batched(images, {task.name: labels.astype(np.int32)}, batch_size, jax.device_put)
    return partial(evaluate_lib.compile_evaluate(predict, like, inputs, lambda name: task), inputs)


def predict(state, images):
    """Two linear models of the mean color and a corner pixel."""
    x = images.astype(jnp.float32) / 255.0
    features = jnp.concatenate([x.mean(axis=(1, 2)), x[:, 0, 0]], axis=-1)
    return {'teacher': features @ state['w'], 'student': features @ -state['w']}


@pytest.mark.parametrize(('count', 'batch_size'), [(23, 5), (20, 5), (4, 50), (1, 1), (7, 6)])
def test_accuracy_equals_a_count_in_numpy(count, batch_size):
    rng = np.random.default_rng(count)
    images = rng.integers(0, 256, (count, 6, 6, 3), dtype=np.uint8)
    labels = rng.integers(0, 4, count)
    w = rng.normal(size=(6, 4)).astype(np.float32)

    x = images.astype(np.float64) / 255.0
    logits = np.concatenate([x.mean(axis=(1, 2)), x[:, 0, 0]], axis=-1) @ w
    expected = {
        'teacher': {'accuracy': sum(int(a.argmax()) == b for a, b in zip(logits, labels, strict=True)) / count},
        'student': {'accuracy': sum(int(a.argmin()) == b for a, b in zip(logits, labels, strict=True)) / count},
    }
    assert make_evaluate(predict, {'w': w}, images, labels, batch_size)({'w': jnp.asarray(w)}) == expected


def test_rows_that_fill_up_the_last_batch_do_not_count():
    """Image 0 fills up the batch, and it is the only one the model gets right."""
    images = np.zeros((5, 2, 2, 1), np.uint8)
    images[0] = 255
    labels = np.array([1, 1, 1, 1, 1])

    def bright(state, images):
        share = images.astype(jnp.float32).mean(axis=(1, 2, 3)) / 255.0
        return {'student': jnp.stack([1 - share, share], axis=-1)}

    assert make_evaluate(bright, {}, images, labels, 4)({}) == {'student': {'accuracy': 0.2}}


def test_of_several_models_the_mean_counts_and_the_best_stands_beside_it():
    """Lower is better: the mean of |output - target| is 1 for the first model and 3 for the second."""
    score = tasks.Score('error', 'error', percent=False, higher_is_better=False)

    def count(outputs, targets, valid, sizes):
        return jnp.sum(jnp.where(valid, jnp.abs(outputs - targets), 0)), jnp.sum(valid)

    scorer = tasks.Scorer(count, lambda counts: {'error': float(counts[0].sum() / counts[1].sum()), 'other': 7.0})
    task = tasks.Task('depth', 'Depth', 1, True, loss=None, score=score, scorer=scorer)

    def predict(state, images):
        pixel = images[:, 0, 0, 0].astype(jnp.float32)
        return {'depth': (pixel + 1, pixel - 3)}

    images = np.arange(5, dtype=np.uint8).reshape(5, 1, 1, 1)
    evaluate = make_evaluate(predict, {}, images, np.arange(5), 2, task)
    assert evaluate({}) == {'depth': {'error': 2.0, 'other': 7.0, 'error_best': 1.0}}
