"""The state before the first round, rounds that are skipped, and predictions."""

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.core import rng, state
from tests.helpers import linear, toy


def test_the_teacher_begins_as_the_student_in_arrays_of_its_own():
    start = state.init_state(rng.root(0), linear.model(), queue=('a queue',))
    pairs = zip(jax.tree.leaves(start.student), jax.tree.leaves(start.teacher), strict=True)
    for ours, theirs in pairs:
        np.testing.assert_array_equal(ours, theirs)
        assert ours is not theirs, 'a round donates its state: each buffer once'
    assert (int(start.round), int(start.step)) == (0, 0)
    assert start.student.proj['params']
    plain = state.init_state(rng.root(0), linear.model(), teacher=False)
    assert (plain.teacher, plain.student.proj) == ((), {'params': {}})


def test_the_first_rounds_are_skipped_and_their_metrics_are_no_numbers():
    start = state.init_state(rng.root(0), linear.model(), teacher=False)
    run = state.after_pre_rounds(2, lambda key, state: (7.0, {'loss': jnp.float32(3.0)}), lambda state: (1.0,))
    values = [run(rng.root(0), start.replace(round=jnp.int32(number))) for number in range(4)]
    np.testing.assert_array_equal([value for value, _ in values], [1, 1, 7, 7])
    np.testing.assert_array_equal([metrics['loss'] for _, metrics in values], [np.nan, np.nan, 3, 3])


def test_a_prediction_is_that_of_normalized_images_with_running_statistics():
    """Logits of the three matrices: (x W_bottom - mean) W_top, with x = pixel / 32 - 4."""
    variables, images = linear.model().init(rng.root(0)), toy.federation().client_images[:2]
    x = (np.asarray(images, np.float64) / 32 - 4).reshape(2, -1)
    pieces = linear.numbers(variables)
    expected = (x @ pieces['bottom'] - pieces['mean']) @ pieces['top']
    np.testing.assert_allclose(
        state.predict(linear.model(), toy.VIEWS, variables, images), expected, rtol=1e-4, atol=1e-4
    )
    assert state.num_classes(linear.model(), variables.top) == toy.CLASSES
