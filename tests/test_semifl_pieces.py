"""SemiFL's mixup, sets, momentum and clipping by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax.algorithms.semifl import SemiFL, draw_sets, mix_loss, of_epochs, pair
from semisfl_jax.core import trees
from semisfl_jax.core.hparams import HParams, optimizer
from semisfl_jax.core.state import trainable
from tests.semifl_rounds import PASS, SMALL, build, first, play
from tests.trees import assert_trees_close


def test_the_loss_of_mixtures_by_hand():
    """A model whose logits are linear in the image, on mixtures of two images each."""
    generator = np.random.default_rng(0)
    w, x, other = generator.normal(size=(5, 3)), generator.normal(size=(4, 5)), generator.normal(size=(4, 5))
    labels, others, share = np.array([0, 2, 1, 1]), np.array([1, 2, 0, 1]), 0.3
    expected = 0.0
    for j in range(4):
        logits = share * (x[j] @ w) + (1 - share) * (other[j] @ w)
        p = np.exp(logits) / np.exp(logits).sum()
        expected -= (share * np.log(p[labels[j]]) + (1 - share) * np.log(p[others[j]])) / 4
    mixed = jnp.float32(share * x + (1 - share) * other)
    actual = mix_loss(mixed @ jnp.float32(w), jnp.array(labels), jnp.array(others), jnp.float32(share), jnp.ones(4))
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


CONFIDENT = np.array([0, 1, 0, 0, 1, 1, 0, 1, 0, 0, 0, 0], bool)  # of a client of 9 images, in a table of 12


def test_fix_is_what_is_confident_and_mix_is_drawn_from_all():
    draw = jax.jit(jax.vmap(lambda key: draw_sets(key, jnp.asarray(CONFIDENT), jnp.int32(9))))
    sets = jax.device_get(draw(jax.random.split(jax.random.key(0), 4000)))
    assert set(sets.num_confident) == {4}
    np.testing.assert_array_equal(sets.fix[:, :4], np.tile([1, 4, 5, 7], (4000, 1)))
    mix = sets.mix[:, :4]
    assert mix.min() == 0
    assert mix.max() == 8
    counts = np.bincount(mix.ravel(), minlength=9)
    # chi-square of 8 degrees of freedom: above 26.1 once in a thousand times
    assert np.sum((counts - 16000 / 9) ** 2) / (16000 / 9) < 26.1
    distinct = np.mean([len(set(row)) == 4 for row in mix])  # 9 * 8 * 7 * 6 / 9^4 with replacement
    np.testing.assert_allclose(distinct, 9 * 8 * 7 * 6 / 9**4, atol=0.03)


def test_the_table_of_the_largest_client_changes_no_draw():
    small, large = (
        draw_sets(jax.random.key(3), jnp.asarray(np.pad(CONFIDENT, (0, more))), jnp.int32(9)) for more in (0, 20)
    )
    for field in ('fix', 'mix'):
        np.testing.assert_array_equal(getattr(small, field)[:4], getattr(large, field)[:4])


def test_both_sets_are_read_epoch_after_epoch_and_paired_at_random():
    sets = draw_sets(jax.random.key(1), jnp.asarray(CONFIDENT), jnp.int32(9))
    epochs = 300
    fix, mix = jax.device_get(pair(jax.random.key(2), sets, jnp.arange(4 * epochs)))
    for read, image_set in ((fix, sets.fix), (mix, sets.mix)):
        for epoch in read.reshape(epochs, 4):
            np.testing.assert_array_equal(np.sort(epoch), np.sort(image_set[:4]))
    partners = [set(mix[fix == position]) for position in (1, 4, 5, 7)]
    assert partners == [set(np.asarray(sets.mix[:4]))] * 4
    orders = {tuple(row) for row in fix.reshape(epochs, 4)}
    assert len(orders) == 24


def test_in_epochs_mix_is_drawn_anew_at_every_access():
    """From all images, with replacement, whatever was drawn before: `MixDataset` of the authors' code."""
    sets = draw_sets(jax.random.key(1), jnp.asarray(CONFIDENT), jnp.int32(9))  # 4 confident images
    draw = jax.jit(jax.vmap(lambda t: of_epochs(jax.random.key(2), sets, jnp.int32(9), t, 3)))
    fix, mix, valid = jax.device_get(draw(jnp.arange(4000)))  # 2,000 passes of batches of 3 and 1
    np.testing.assert_array_equal(valid, np.tile([[1, 1, 1], [1, 0, 0]], (2000, 1)))
    for read in np.split(fix[valid], 2000):
        np.testing.assert_array_equal(np.sort(read), [1, 4, 5, 7])
    by_pass = mix[valid].reshape(2000, 4)
    assert len({tuple(sorted(row)) for row in by_pass}) > 300  # of 9 * 10 * 11 * 12 / 24 = 495; once drawn: 1
    counts = np.bincount(by_pass.ravel(), minlength=9)
    assert len(counts) == 9
    # chi-square of 8 degrees of freedom: above 26.1 once in a thousand times
    assert np.sum((counts - 8000 / 9) ** 2) / (8000 / 9) < 26.1
    distinct = np.mean([len(set(row)) == 4 for row in by_pass])  # 9 * 8 * 7 * 6 / 9^4 with replacement
    np.testing.assert_allclose(distinct, 9 * 8 * 7 * 6 / 9**4, atol=0.04)


def test_clipping_by_hand():
    """A gradient of norm 5 becomes one of norm 1, before the L2 term; a short one stays. Other methods do not clip."""
    plain = dataclasses.replace(SMALL, momentum=0.0, nesterov=False, weight_decay=0.5)
    for gradient, factor in ((np.array([3.0, 4.0]), 0.2), (np.array([0.3, 0.4]), 1.0)):
        w = jnp.array([1.0, -2.0])
        for norm, scale in ((1.0, factor), (0.0, 1.0)):
            sgd = optimizer(dataclasses.replace(plain, clip_norm=norm), jnp.float32(0.1))
            updates, _ = sgd.update(jnp.float32(gradient), sgd.init(w), w)
            np.testing.assert_allclose(updates, -0.1 * (scale * gradient + 0.5 * np.array([1.0, -2.0])), rtol=1e-6)
    assert HParams().clip_norm == 0.0


PLAIN = {'momentum': 0.0, 'nesterov': False, 'weight_decay': 0.0}
TINY = 1e-2


def distance(a, b):
    return float(jnp.sqrt(trees.squared_distance(trainable(a.student), trainable(b.student))))


@pytest.mark.slow
def test_server_and_clients_clip():
    """A step of plain SGD from a gradient that is far longer than the limit has the length lr * limit."""
    changes = PLAIN | {'options': SemiFL(clip_norm=TINY, **PASS), 'k_u': 1}
    state = first(build(**changes)[0])
    server, metrics = play([4], state, weight=[0.0], **changes)
    np.testing.assert_allclose(distance(server, state), 0.02 * TINY, rtol=0.02)  # of sums of weights near 1
    both, metrics = play([4], state, weight=[1.0], **changes)
    assert metrics['clients_sitting_out'] == 0
    np.testing.assert_allclose(distance(both, server), 0.02 * TINY, rtol=0.02)


@pytest.mark.slow
def test_global_momentum_over_two_rounds():
    """theta_2 = mean_2 - m (theta_0 - theta_1), where mean_2 is what the clients make of theta_1."""
    with_, without = ({'options': SemiFL(global_momentum=m, **PASS)} for m in (0.5, 0.0))
    start = first(build(**with_)[0])
    rounds = {'ids': [1, 2, 4], 'k_s': 0}
    one, _ = play(state=start, **rounds, **with_)
    same, _ = play(state=start, **rounds, **without)
    assert_trees_close(one.student, same.student, rtol=1e-5, atol=1e-6)  # the momentum starts at zero
    two, _ = play(state=one, **rounds, **with_)
    mean, _ = play(state=one, **rounds, **without)
    before, middle, mean = (trainable(s.student) for s in (start, one, mean))
    expected = jax.tree.map(lambda new, a, b: new - 0.5 * (a - b), mean, before, middle)
    assert_trees_close(trainable(two.student), expected, rtol=1e-4, atol=1e-5)
    assert distance(two, one) > 1e-2
