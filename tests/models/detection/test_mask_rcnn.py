"""Mask R-CNN in training, and pasted masks by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax.models.detection import mask_rcnn, proposals
from tests.helpers.detection import whole_frames

KEY = jax.random.key(3)
SMALL = mask_rcnn.Settings(
    sizes=(8, 16, 32), anchors=16, proposals_train=(20, 16), proposals=(10, 8), samples=8, detections=5, least=0.0
)


def test_pasted_masks_by_hand():
    """A mask of ones, 4 x 4, in a box of 4 x 2 pixels; with its border of zeros 6 x 3, which touches 7 x 4 pixels."""
    pasted = mask_rcnn.paste(np.ones((1, 4, 4), np.float32), np.array([[3, 2, 7, 4]], np.float32), 8, 12)
    assert pasted.shape == (1, 8, 12)
    # Columns 2 to 8, of 6 elements: pixel i reads element (i + 0.5) * 6 / 7 - 0.5; rows 1 to 4 (i + 0.5) * 6 / 4 - 0.5
    at = np.clip((np.arange(7) + 0.5) * 6 / 7 - 0.5, 0, 5)
    columns = np.interp(at, np.arange(6), [0, 1, 1, 1, 1, 0])
    rows = np.interp((np.arange(4) + 0.5) * 1.5 - 0.5, np.arange(6), [0, 1, 1, 1, 1, 0])
    expected = np.zeros((8, 12))
    expected[1:5, 2:9] = np.outer(rows, columns)
    np.testing.assert_allclose(pasted[0], expected, atol=1e-6)


@pytest.fixture(scope='module')
def small():
    """A model of two levels, its variables, maps of two images, and objects: two and none."""
    model = mask_rcnn.MaskRCNN(2, (32, 48), SMALL, width=8, hidden=16)
    rng = np.random.default_rng(0)
    maps = [rng.normal(size=(2, *shape)).astype(np.float32) for shape in ((16, 24, 3), (8, 12, 5))]
    masks = np.zeros((2, 3, 32, 48), np.uint8)
    masks[0, 0, 4:14, 6:20], masks[0, 1, 16:30, 20:44] = 1, 1
    found = np.zeros((2, 3, 4), np.float32)
    found[0, :2] = [[6, 4, 20, 14], [20, 16, 44, 30]]
    valid = np.zeros((2, 3), bool)
    valid[0, :2] = True
    labels = np.zeros((2, 3), np.int32)
    labels[0, :2] = 1, 2
    objects = proposals.Objects(*map(jnp.asarray, (found, labels, masks, valid, whole_frames(masks))))
    return model, jax.jit(model.init)(jax.random.key(0), maps), maps, objects


@pytest.mark.slow
def test_training_lowers_every_loss_and_finds_the_objects(small):
    import optax

    model, variables, maps, objects = small
    optimizer = optax.adam(0.01)

    def total(variables, key):
        parts = model.apply(variables, maps, objects, key, method='losses')
        return sum(parts.values()), parts

    @jax.jit
    def train(variables):
        def step(carry, key):
            (_, parts), gradients = jax.value_and_grad(total, has_aux=True)(carry[0], key)
            updates, state = optimizer.update(gradients, carry[1])
            return (optax.apply_updates(carry[0], updates), state), parts

        keys = jax.random.split(jax.random.key(1), 150)
        return jax.lax.scan(step, (variables, optimizer.init(variables)), keys)

    (trained, _), parts = train(variables)
    assert sorted(parts) == ['anchors', 'boxes', 'classes', 'masks', 'objectness']
    for name, values in parts.items():
        assert np.isfinite(values).all(), name
        assert np.mean(values[-10:]) < 0.5 * np.mean(values[:10]), name
    found = jax.tree.map(np.asarray, jax.jit(model.apply)(trained, maps))
    best = found.scores[0] > 0.5
    assert sorted(found.labels[0, best].tolist()) == [1, 2]
    for label, box, mask in zip(found.labels[0, best], found.boxes[0, best], found.masks[0, best], strict=True):
        truth = np.asarray(objects.masks[0, label - 1]) > 0
        ours = mask_rcnn.paste(mask[None], box[None], 32, 48)[0] > 0.5
        assert (ours & truth).sum() / (ours | truth).sum() > 0.7
    assert not (found.scores[1] > 0.5).any()


def test_what_pads_the_objects_does_not_matter(small):
    model, variables, maps, objects = small
    other = objects._replace(
        boxes=jnp.where(objects.valid[..., None], objects.boxes, 9.0),
        masks=jnp.where(objects.valid[..., None, None], objects.masks, 1),
        labels=jnp.where(objects.valid, objects.labels, 2),
    )
    loss = jax.jit(jax.value_and_grad(lambda v, of: sum(model.apply(v, maps, of, KEY, method='losses').values())))
    first, second = loss(variables, objects), loss(variables, other)
    assert jax.tree.all(jax.tree.map(np.array_equal, first, second))
    assert jax.tree.all(jax.tree.map(lambda x: np.isfinite(x).all(), first))
