"""Scores of dense tasks: hand-made 4x4 maps, scikit-learn, and batches against the whole set."""

import jax
import numpy as np
import pytest
import sklearn.metrics

from semisfl_jax import tasks
from semisfl_jax.tasks import IGNORED

OUTPUTS = {'semseg': 4, 'saliency': 1, 'edges': 1, 'depth': 1, 'keypoints': 2}
VOID = IGNORED


def logit(probability):
    """Logits [..., 1] of probabilities."""
    p = np.asarray(probability, np.float64)[..., None]
    return np.log(p / (1 - p)).astype(np.float32)


def score(task, outputs, targets, valid=None):
    """Of one batch."""
    outputs, targets = np.asarray(outputs, np.float32), np.asarray(targets, np.uint8)
    valid = np.ones(len(targets), bool) if valid is None else valid
    counts = jax.jit(task.scorer.count)(outputs, targets, valid)
    return task.scorer.finish(jax.tree.map(lambda x: np.asarray(x)[None], counts))


def example(name, count=7, side=12):
    """Outputs and targets of some quality, a tenth of them without truth."""
    rng = np.random.default_rng(3)
    shape = count, side, side
    highest = {'semseg': 3, 'saliency': 1, 'edges': 1, 'depth': 254, 'keypoints': 2}[name]
    targets = rng.integers(0, highest + 1, shape)
    if name == 'keypoints':
        targets *= rng.uniform(size=shape) < 0.04
    outputs = rng.normal(size=(*shape, OUTPUTS[name]))
    if name == 'semseg':
        outputs += 1.5 * np.eye(4)[targets]
    elif name == 'keypoints':
        outputs += 2 * (targets[..., None] == [1, 2])
    elif name == 'depth':
        outputs = targets[..., None] / 254 + 0.1 * outputs
    else:
        outputs += 2 * targets[..., None] - 1
    void = rng.uniform(size=shape) < 0.1
    return outputs.astype(np.float32), np.where(void, VOID, targets).astype(np.uint8)


def test_miou_by_hand():
    """Classes 0 to 2 of four: 5 of 8, 3 of 5 and 3 of 4 pixels of the unions; nobody says 3. 11 of 14 are right."""
    truth = [[0, 0, 0, 0], [0, 0, 0, 1], [1, 1, 1, 2], [2, 2, VOID, VOID]]
    guess = [[0, 0, 0, 0], [0, 1, 2, 1], [1, 1, 0, 2], [2, 2, 3, 0]]
    # 0: true 7, predicted 6, both 5. 1: true 4, predicted 4, both 3. 2: true 3, predicted 4, both 3.
    result = score(tasks.make('semseg', 4), np.eye(4)[[guess]], [truth])
    assert result == {'miou': pytest.approx((5 / 8 + 3 / 5 + 3 / 4) / 3), 'pixelaccuracy': pytest.approx(11 / 14)}


def test_miou_equals_scikit_learn():
    outputs, targets = example('semseg')
    counts = np.asarray(tasks.make('semseg', 4).scorer.count(outputs, targets, np.ones(7, bool)))
    known = targets != VOID
    truth, guess = targets[known], outputs.argmax(-1)[known]
    np.testing.assert_array_equal(counts, sklearn.metrics.confusion_matrix(truth, guess, labels=range(4)))
    result = score(tasks.make('semseg', 4), outputs, targets)
    np.testing.assert_allclose(result['miou'], sklearn.metrics.jaccard_score(truth, guess, average='macro'))
    np.testing.assert_allclose(result['pixelaccuracy'], sklearn.metrics.accuracy_score(truth, guess))
    assert 0.3 < result['miou'] < 0.9


def test_saliency_by_hand():
    """Three images, whose mean IoUs are 1/2 below 0.3, 5/6 up to 0.4, 1/2 up to 0.52 and 2/3 above it."""
    truth, guess = np.zeros((3, 4, 4), np.uint8), np.full((3, 4, 4), 0.1)
    truth[0, 0], guess[0, 0], guess[0, 1] = 1, 0.95, 0.52  # 4 of 8 pixels below 0.52, then 4 of 4
    guess[1] = 0.31  # nothing is there: 0 below 0.31, then 1
    truth[2, :2], guess[2, :2] = 1, 0.41  # 8 of 8 below 0.41, then 0 of 8
    assert score(tasks.make('saliency', 1), logit(guess), truth) == {'iou': pytest.approx((1 / 2 + 1 + 1) / 3)}


def test_saliency_leaves_out_pixels_and_images_without_truth():
    truth, guess = np.zeros((2, 4, 4), np.uint8), np.full((2, 4, 4), 0.1)
    truth[0, 0], guess[0, 0], guess[0, 1] = 1, 0.95, 0.95
    truth[0, 1, :2] = VOID  # 4 of 6 pixels
    truth[1] = VOID
    assert score(tasks.make('saliency', 1), logit(guess), truth) == {'iou': pytest.approx(4 / 6)}


def test_saliency_equals_scikit_learn():
    outputs, targets = example('saliency')
    means = []
    for threshold in np.linspace(0.2, 0.9, 15):
        guess = 1 / (1 + np.exp(-outputs[..., 0].astype(np.float64))) > threshold
        pairs = [(t[t != VOID], g[t != VOID]) for t, g in zip(targets, guess, strict=True)]
        means.append(np.mean([sklearn.metrics.jaccard_score(t, g, zero_division=1.0) for t, g in pairs]))
    result = score(tasks.make('saliency', 1), outputs, targets)['iou']
    np.testing.assert_allclose(result, max(means))
    assert np.argmax(means) not in (0, 14)


def test_rmse_by_hand():
    """Errors of 0.5 at two pixels and 0.1 at one, 13 pixels of which are known: sqrt((0.5 + 0.01) / 13)."""
    targets = np.full((1, 4, 4), 127, np.uint8)
    outputs = np.full((1, 4, 4, 1), 0.5)
    targets[0, 0] = [0, 254, 127, VOID]
    targets[0, 1, :2] = VOID
    outputs[0, 0, :, 0] = [0.5, 0.5, 0.6, 9]
    assert score(tasks.make('depth', 1), outputs, targets) == {'rmse': pytest.approx((0.51 / 13) ** 0.5)}


@pytest.mark.parametrize('name', list(OUTPUTS))
def test_batches_equal_the_whole_set(name):
    """Seven images as four batches of two, with padding that would change the score if it counted."""
    task = tasks.make(name, OUTPUTS[name])
    outputs, targets = example(name)
    expected = score(task, outputs, targets)
    assert np.isfinite(list(expected.values())).all()
    assert task.score.name in expected
    padding = -outputs[:1] if name == 'depth' else np.ones_like(outputs[:1])
    filled = np.concatenate([outputs, padding]), np.concatenate([targets, targets[:1]]), np.arange(8) < 7
    count = jax.jit(task.scorer.count)
    batches = [count(*(rows[i : i + 2] for rows in filled)) for i in range(0, 8, 2)]
    stacked = jax.tree.map(lambda *rows: np.stack(rows), *batches)
    assert task.scorer.finish(stacked) == pytest.approx(expected, rel=1e-6)
    assert score(task, filled[0], filled[1]) != pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize('name', list(OUTPUTS))
def test_without_truth_there_is_no_score(name):
    task = tasks.make(name, OUTPUTS[name])
    outputs, targets = example(name)
    assert np.isnan(list(score(task, outputs, np.full_like(targets, VOID)).values())).all()
    assert np.isnan(list(score(task, outputs, targets, np.zeros(7, bool)).values())).all()
