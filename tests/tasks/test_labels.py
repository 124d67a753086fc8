"""Scores of classification: against scikit-learn and NumPy, and those of clients by hand."""

import jax
import numpy as np
import pytest
import sklearn.metrics

from semisfl_jax.tasks import labels

NAN = float('nan')


def test_scores_are_those_of_scikit_learn_and_numpy():
    """Class 3 is neither truth nor prediction, class 4 only a prediction. A label is unknown, two rows are padding."""
    rng = np.random.default_rng(0)
    truth, valid = rng.integers(0, 3, (2, 20)), np.ones((2, 20), bool)
    truth[0, 5], valid[1, 18:] = -1, False
    logits = rng.normal(size=(2, 20, 5)).astype(np.float32) + 2 * np.eye(5, dtype=np.float32)[truth]
    logits[..., 3] -= 20
    logits[0, :3, 4] += 20
    scorer, known = labels.scorer(5), valid & (truth >= 0)
    counts = [jax.jit(scorer.count)(*batch) for batch in zip(logits, truth.astype(np.int32), valid, strict=True)]
    found = scorer.finish(jax.tree.map(lambda *parts: np.stack(parts), *counts))

    x, y = np.float64(logits[known]), truth[known]
    predicted = x.argmax(axis=1)
    assert set(predicted) == {0, 1, 2, 4}
    assert found['accuracy'] == np.mean(predicted == y)
    assert found['macro_f1'] == pytest.approx(sklearn.metrics.f1_score(y, predicted, average='macro'))
    recall = sklearn.metrics.recall_score(y, predicted, labels=[0, 1, 2], average=None)
    np.testing.assert_allclose(found['accuracy_per_class'], [*recall, NAN, NAN])
    rows = np.log(np.exp(x).sum(axis=1)) - x[np.arange(len(y)), y]
    assert found['eval_loss'] == pytest.approx(rows.mean(), rel=1e-6)


def test_without_known_classes_there_are_no_scores():
    scorer = labels.scorer(2)
    counts = scorer.count(np.zeros((3, 2), np.float32), np.full(3, -1, np.int32), np.ones(3, bool))
    for value in scorer.finish([np.asarray(each)[None] for each in counts]).values():
        assert np.isnan(value).all()


def test_the_accuracy_of_a_client_is_weighted_by_its_classes():
    """Class 2 has no test image. The last two clients hold nothing that does, and do not count.

    Accuracies are 1, (2 * 1 + 2 * 0.5) / 4 = 0.75 and (0.5 + 3 * 0) / 4 = 0.125: 0.625 on average, with deviations of
    0.375, 0.125 and -0.5.
    """
    held = np.array([[4, 0, 0, 0], [2, 2, 5, 0], [0, 1, 0, 3], [0, 0, 7, 0], [0, 0, 0, 0]])
    assert labels.of_clients(np.array([1.0, 0.5, NAN, 0.0, 0.9]), held) == {
        'client_accuracy': 0.625,
        'client_accuracy_std': pytest.approx(((0.375**2 + 0.125**2 + 0.5**2) / 3) ** 0.5),
        'client_accuracy_worst': 0.125,
    }
    assert np.isnan([*labels.of_clients(np.array([1.0, 0.5, NAN, 0.0]), held[3:]).values()]).all()


@pytest.mark.parametrize(('clients', 'worst'), [(9, 0.0), (10, 0.0), (11, 0.5), (21, 1.0)])
def test_the_worst_tenth_is_rounded_up(clients, worst):
    """Client n alone holds a class whose accuracy is n. Of 11 clients it is the mean of 0 and 1, of 21 of 0, 1, 2."""
    found = labels.of_clients(np.arange(clients, dtype=float), np.eye(clients, dtype=int)[::-1])
    assert found['client_accuracy_worst'] == worst
