"""What evaluations add to accuracy, recomputed from predictions, and loss_global, the objective of all clients: against
sums over clients, image by image, in NumPy."""

import numpy as np
import pytest
import sklearn.metrics

import semisfl_jax as sfl
from semisfl_jax.core.hparams import HParams, Local
from semisfl_jax.data import Partition
from semisfl_jax.training import evaluation, load
from tests.helpers import runs

# Clients hold different numbers of images, some no label; the last batch of an evaluation is not full.
SETTINGS = {
    'algorithm': 'fed_shvr',
    'rounds': 2,
    'eval_every': 2,
    'eval_batch_size': 100,
    'data__client_labels': 6,
    'federation__mu': 1,
    'federation__partition': 'dirichlet',
    'federation__alpha': 0.3,
    'k_s': 0,
    'optimizer': 'sgd',
    'fed_shvr__alpha0': 0.8,
    'fed_shvr__alpha1': 0.5,
    'fed_shvr__alpha2': 0.2,
}


def test_every_model_has_the_scores_of_its_predictions_and_clients_their_shares(reference):
    """A client judges each test image by its own share of the image's class, over the images of this class."""
    experiment = load.experiment(reference)
    dataset, partition, last = experiment.dataset, experiment.partition, runs.records(reference)[-1]
    y, held = dataset.test_labels, [dataset.train_labels[rows] for rows in partition.client_index]
    weight = np.array([[np.mean(client == label) / np.mean(y == label) / len(y) for label in y] for client in held])
    for model, logits in sfl.load_trained(reference).predict(dataset.test_images).items():
        right = logits.argmax(axis=1) == y
        clients = np.sort(weight @ right)
        expected = {
            'accuracy': right.mean(),
            'macro_f1': sklearn.metrics.f1_score(y, logits.argmax(axis=1), average='macro'),
            'eval_loss': sklearn.metrics.log_loss(y, np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)),
            'accuracy_per_class': [right[y == label].mean() for label in range(10)],
            'client_accuracy': clients.mean(),
            'client_accuracy_std': clients.std(),
            'client_accuracy_worst': clients[0],  # of ten
        }
        for key, value in expected.items():
            assert last[f'{model}_{key}'] == pytest.approx(value, rel=1e-5), key


def expected(folder, alpha0=0.8, alpha1=0.5, alpha2=0.2):
    """F of the last model, client by client, in float64; each with its share of all images."""
    experiment, trained = load.experiment(folder), sfl.load_trained(folder)
    dataset, partition, total, values = experiment.dataset, experiment.partition, 0, []
    for unlabeled, labeled in zip(partition.client_index, partition.client_labeled_index, strict=True):
        log_p = {}
        for name, rows in (('unlabeled', unlabeled), ('labeled', labeled)):
            if not len(rows):
                continue
            logits = np.float64(trained.predict(dataset.train_images[rows])['student'])
            log_p[name] = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        p = np.exp(log_p['unlabeled'])
        v = p ** (alpha0 / alpha1)
        v /= v.sum(axis=1, keepdims=True)
        value = np.mean(
            -alpha0 * np.sum(v * log_p['unlabeled'], axis=1)
            + alpha1 * np.sum(v * np.log(10 * v), axis=1)
            + alpha2 * np.sum(p * np.log(10 * p), axis=1)
        )
        if len(labeled):
            value -= np.mean(log_p['labeled'][np.arange(len(labeled)), dataset.train_labels[labeled]])
        values.append((len(unlabeled) + len(labeled)) * value)
        total += len(unlabeled) + len(labeled)
    assert min(map(len, partition.client_labeled_index)) == 0, 'every client has labels'
    return sum(values) / total


def test_the_global_loss_is_the_weighted_objective_of_the_servers_model(tmp_path):
    """Also during the ramp of alpha0, with what it rises to; in rounds with an evaluation."""
    assert runs.run(tmp_path, **SETTINGS) == 0
    records = runs.records(tmp_path)
    assert [record.get('loss_global') is not None for record in records] == [False, True]
    assert records[-1]['loss_global'] == pytest.approx(expected(tmp_path), rel=1e-5)


@pytest.mark.slow
def test_seeds_in_one_program_and_images_on_the_host_have_the_same(tmp_path):
    assert runs.run(tmp_path / 'alone', **SETTINGS, seed=1) == 0
    assert runs.run(tmp_path / 'seeds', **SETTINGS, seeds='0,1', data__residency='host') == 0
    found = [runs.records(folder)[-1]['loss_global'] for folder in (tmp_path / 'alone', tmp_path / 'seeds' / 'seed_1')]
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_an_image_weighs_by_its_client_and_kind():
    """Clients of 3, 1 and 0 unlabeled and 1, 0 and 0 labeled images."""
    rows = [[np.array(r, int) for r in kind] for kind in ([[5, 6, 7], [8], []], [[9], [], []])]
    partition = Partition('none', '', {}, np.array([0]), *map(tuple, rows))
    held = np.array([[3, 1, 0], [1, 0, 0]], np.int32)
    for weighting, shares in (('samples', (4 / 5, 1 / 5)), ('uniform', (1 / 2, 1 / 2))):
        hparams = HParams(batch_size=4, labeled_rows=2, local=Local(weighting=weighting))
        found, weight = evaluation.global_loss_weights(partition, held, False, hparams)
        assert found.tolist() == [9, 5, 6, 7, 8]
        a, b = shares
        np.testing.assert_allclose(weight, [[a, 0], [0, a / 3], [0, a / 3], [0, a / 3], [0, b]])
    # labels alone, and not used
    found, weight = evaluation.global_loss_weights(partition, held, False, HParams(batch_size=4, labeled_rows=4))
    assert found.tolist() == [9]
    found, weight = evaluation.global_loss_weights(partition, held, False, HParams(labeled_rows=0))
    assert found.tolist() == [5, 6, 7, 8]
