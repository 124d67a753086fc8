"""A method from outside whose clients read whole sets: its record says so, and nothing asks for its name."""

import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import algorithms, costs, intake, losses, phases, rng
from semisfl_jax import config as config_lib
from semisfl_jax import experiment as experiment_lib
from semisfl_jax.hparams import learning_rate, optimizer
from semisfl_jax.phases.state import with_parameters
from semisfl_jax.types import HERE, Algorithm
from tests import runs


def one_pass(model, views, hparams, layout=HERE):
    """Each client passes once over all its images in batches of B, however many K_u are, and learns to predict of an
    image what the model that it received predicts; of the images that it has labels for, the label."""

    def client(visit, kept, state, federation, lr):
        size, labeled_size = federation.size[visit.id], federation.labeled_size[visit.id]
        width = federation.index.shape[1]
        steps = -(-(size + labeled_size) // hparams.batch_size)

        def loss(parameters, student, _, t):
            place = t * hparams.batch_size + jnp.arange(hparams.batch_size)
            ours = place < size + labeled_size
            place = jnp.where(place < size, place, width + jnp.clip(place - size, 0, labeled_size - 1))
            rows = visit.rows[place]
            images = views.normalise(federation.client_images[rows])
            guesses = jnp.argmax(phases.forward(model, state.student, images, None, False)[0], axis=-1)
            labels = jnp.where(visit.labeled[place], federation.client_labels[rows], guesses)
            student = with_parameters(student, parameters)
            logits, student = phases.forward(model, student, images, rng.fold(visit.key, t), True)
            value = losses.cross_entropy(logits, labels, ours.astype(jnp.float32))
            return value, (student, {'loss_local': value}, {})

        student, kept, means, counts = phases.descend(loss, state.student, kept, optimizer(hparams, lr), steps)
        return phases.Work(student, kept, means | {'client_steps': jnp.float32(steps)}, counts)

    local = phases.build_local(client, hparams, layout, reads='sets')

    def init(key):
        return phases.init_state(key, model, memory=(), projection=False, teacher=False)

    def round_(key, state, federation, cohort, k_s):
        lr = learning_rate(hparams, state.round)
        student, _, found = local(key, state, federation, cohort, lr)
        return state.replace(round=state.round + 1, student=student), {'lr': lr, **found}

    def predict(state, images):
        return {'student': phases.predict(model, views, state.student, images)}

    return Algorithm(init, round_, predict, headline='student', uses_clients=True, reads='sets')


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(algorithms.BUILDERS, 'one_pass', one_pass)
    monkeypatch.setitem(costs.METHODS, 'one_pass', costs.METHODS['fedavg'])


# Ten clients share 1,397 images of the digits without labels, and 20 with: 139 or 140, and 2
TOY = {'algorithm': 'one_pass', 'rounds': 2, 'checkpoint_every': 1}
LABELS = {'data__client_labels': 20, 'federation__mu': 1}


@pytest.mark.parametrize(
    'changes',
    [pytest.param({}, marks=pytest.mark.slow, id='unlabeled'), pytest.param(LABELS, id='labels_at_clients')],
)
def test_images_on_the_host_give_the_same_bytes(tmp_path, changes):
    for residency in ('device', 'host'):
        assert runs.run(tmp_path / residency, **TOY, **changes, data__residency=residency) == 0
    assert runs.lines(tmp_path / 'host') == runs.lines(tmp_path / 'device')


@pytest.mark.slow
def test_seeds_in_one_program_are_single_runs_with_images_on_the_host(tmp_path):
    assert runs.run(tmp_path / 'alone', **TOY, **LABELS) == 0
    host = {'data__residency': 'host', 'seeds': '0,1', 'parallel__trials': 'loop'}
    assert runs.run(tmp_path / 'seeds', **TOY, **LABELS, **host) == 0
    assert runs.lines(tmp_path / 'seeds' / 'seed_0') == runs.lines(tmp_path / 'alone')


def test_the_images_that_a_round_counts_are_those_that_its_clients_read(tmp_path):
    assert runs.run(tmp_path / 'run', **TOY, **LABELS) == 0
    for record in runs.records(tmp_path / 'run'):
        # (139 + 2) / 4 and (140 + 2) / 4 are 36 batches, whatever K_u; the server's 8 batches of 4 beside them
        images = record['images_per_second'] * record['wall_seconds']
        assert images == pytest.approx(3 * 36 * 4 + 8 * 4, rel=0.02)


@pytest.mark.parametrize(
    ('changes', 'expected'),
    [
        ({}, 'unlabeled'),
        (LABELS, 'both'),
        ({'algorithm': 'fedavg', 'local__objective': 'supervised', **LABELS}, 'labeled'),
        ({'algorithm': 'fedavg', 'local__objective': 'fixmatch', **LABELS}, 'both'),
    ],
    ids=['outside', 'outside_labels', 'supervised', 'fixmatch'],
)
def test_the_host_counts_the_images_of_a_client_that_the_round_weights_it_by(changes, expected):
    config = config_lib.resolve(runs.config(**({'algorithm': 'one_pass', **changes}), local__weighting='samples'))
    built = experiment_lib.build(config)
    there, cohort = intake.turnout(built, 0), next(intake.cohorts(built, 0))
    parts = built.partition.client_index, built.partition.client_labeled_index
    unlabeled, labeled = (np.array([len(rows[n]) for n in there.ids]) for rows in parts)
    counts = {'unlabeled': unlabeled, 'labeled': labeled, 'both': unlabeled + labeled}
    assert there.images.tolist() == counts[expected].tolist()
    state = built.algorithm.init(built.key)
    _, part = phases.plan(built.key, state, built.federation, cohort, built.hparams, built.algorithm.reads)
    assert part.share.tolist() == counts[expected].tolist()


@pytest.mark.slow
def test_clients_without_a_label_to_train_on_count_no_images(tmp_path):
    """3 of 10 active clients hold a label: 2 steps of 4 images each, beside the server's 8."""
    changes = {'algorithm': 'fedavg', 'local__objective': 'supervised', 'data__client_labels': 3, 'rounds': 1}
    assert runs.run(tmp_path, **changes, federation__num_active=10) == 0
    (record,) = runs.records(tmp_path)
    assert record['images_per_second'] * record['wall_seconds'] == pytest.approx(3 * 2 * 4 + 8 * 4, rel=0.02)


def test_a_record_that_says_otherwise_than_its_rounds_ends_in_one_line(monkeypatch, tmp_path, capsys):
    def wrong(reads):
        return lambda *arguments: one_pass(*arguments)._replace(reads=reads)

    monkeypatch.setitem(algorithms.BUILDERS, 'one_pass', wrong('batches'))
    assert runs.run(tmp_path / 'run', **TOY, data__residency='host') == 2
    error = capsys.readouterr().err
    assert error.startswith("error: the clients of this method read 'sets', and Algorithm.reads says 'batches'")
    assert error.count('\n') == 1
    assert not (tmp_path / 'run').exists()
    monkeypatch.setitem(algorithms.BUILDERS, 'one_pass', wrong('everything'))
    assert runs.run(tmp_path / 'run', **TOY) == 2
    assert "its Algorithm has reads='everything'; use one of batches, sets" in capsys.readouterr().err
