"""Decoders of objects: targets as objects, joints between pixels of images and maps, one encoder for all tasks."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import models
from semisfl_jax.base.errors import UserError
from semisfl_jax.costs.prices import DenseSpec, measure
from semisfl_jax.models.dense_zoo import SceneEncoder
from semisfl_jax.models.detection import decoders, panoptic
from semisfl_jax.models.detection.mask_rcnn import Settings
from tests.helpers import toy_objects


def test_objects_have_the_bits_of_their_masks_over_their_boxes():
    boxes = np.float32([[[1, 2, 5, 9], [0, 0, 0, 0]]])
    masks = np.zeros((1, 2, 8, 1), np.uint8)
    masks[0, 0, 3] = 0b10000001
    found = decoders.objects_of({'boxes': jnp.array(boxes), 'labels': jnp.uint8([[2, 0]]), 'masks': jnp.array(masks)})
    assert found.valid.tolist() == [[True, False]]
    assert found.labels.tolist() == [[2, 0]]
    np.testing.assert_array_equal(found.boxes, boxes)
    np.testing.assert_array_equal(found.frames, boxes)
    assert np.argwhere(found.masks).tolist() == [[0, 0, 3, 0], [0, 0, 3, 7]]


def with_outputs(outputs, **options):
    """Calls a decoder of one joint for images of 64 x 64, whose branch returns `outputs` [16, 16, 2]."""
    decoder = decoders.PersonDecoder(1, (64, 64), decoders.Scale(4, 4, 32))

    def intercept(call, arguments, options, context):
        made = call(*arguments, **options)
        return jnp.asarray(outputs)[None] if isinstance(context.module, panoptic.SemanticBranch) else made

    maps = [jnp.zeros((1, side, side, 3)) for side in (16, 8, 4)]
    variables = jax.jit(partial(decoder.init, train=False))(jax.random.key(0), maps)
    with nn.intercept_methods(intercept):
        return jax.jit(partial(decoder.apply, **options))(variables, maps)


def test_joints_are_found_where_they_are_learned():
    """Four pixels of the image are one of the map: the middle of those from 20 to 23 is 21.5, pixel 5 of the map."""
    x, y, sigma = 5, 9, 2 * 16 / 128
    rows, columns = np.mgrid[:16, :16]
    heat = np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * sigma**2))
    outputs = np.stack([heat, np.full((16, 16), 0.5)], axis=-1).astype(np.float32)
    best = with_outputs(outputs, train=False)['peaks'][0, 0, 0]
    np.testing.assert_allclose(best, [4 * x + 1.5, 4 * y + 1.5, 1, 0.5])
    targets = {
        'joints': jnp.array([[[[21.5, 37.5]], [[0, 0]]]]),
        'visible': jnp.uint8([[[1], [0]]]),
        'known': jnp.ones((1, 64, 64), jnp.uint8),
    }
    assert with_outputs(outputs, train=True, targets=targets)['heat'] == pytest.approx(0, abs=1e-12)
    wrong = outputs + np.float32([1, 0]) * (rows < 4)[..., None]  # by 1 in a quarter of the map
    assert with_outputs(wrong, train=True, targets=targets)['heat'] == pytest.approx(0.25, rel=1e-5)
    targets['known'] = targets['known'].at[:, :8].set(0)  # of which half is unknown
    assert with_outputs(wrong, train=True, targets=targets)['heat'] == pytest.approx(0.125, rel=1e-5)


def test_heat_starts_at_zero():
    """So that the first loss is the mean square of what is to be learned: outputs add the square of 1e-3, times 32
    channels, times what these have, below ten."""
    x, y, sigma = 5, 9, 2 * 16 / 128
    rows, columns = np.mgrid[:16, :16]
    heat = np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * sigma**2))
    targets = {
        'joints': jnp.array([[[[21.5, 37.5]]]]),
        'visible': jnp.ones((1, 1, 1), jnp.uint8),
        'known': jnp.ones((1, 64, 64), jnp.uint8),
    }
    decoder = decoders.PersonDecoder(1, (64, 64), decoders.small(64))
    maps = [jax.random.normal(jax.random.key(side), (1, side, side, 8)) for side in (16, 8, 4)]
    variables = jax.jit(partial(decoder.init, train=True))(jax.random.key(0), maps)
    found = jax.jit(partial(decoder.apply, train=True, targets=targets))(variables, maps)['heat']
    assert found == pytest.approx(np.mean(heat**2), abs=10 * 32e-6)


@pytest.mark.slow
@pytest.mark.parametrize('task', ['persons', 'instances'])
def test_a_task_of_objects_has_the_encoder_of_the_others(task):
    """The same parameters, and C2 to C5 at strides 4 to 32, whatever the output stride is."""
    shape, name = (64, 64, 3), 'deeplabv3_resnet18'
    of_maps, of_objects = (models.build_dense(name, 5, shape, task=each, output_stride=8) for each in ('', task))
    assert of_objects.feature_size == sum((64 >> 2 + n) ** 2 * (64 << n) for n in range(4))
    shapes = [jax.eval_shape(model.init, jax.random.key(0)).bottom for model in (of_maps, of_objects)]
    assert jax.tree.all(jax.tree.map(lambda x, y: x.shape == y.shape, *shapes))
    small = [models.build_dense('scene_net', 5, (16, 16, 3), task=each) for each in ('', 'persons')]
    first, second = (jax.jit(lambda key, model=model: model.init(key).bottom)(jax.random.key(0)) for model in small)
    assert jax.tree.all(jax.tree.map(np.array_equal, first, second))


def test_models_that_objects_cannot_use_are_refused(monkeypatch):
    def without(outputs, compute, output_stride):
        return models.EncoderDecoder(SceneEncoder(), nn.Dense(outputs))

    monkeypatch.setitem(models.DENSE_ARCHITECTURES, 'mine', without)
    with pytest.raises(UserError, match="'mine' has no maps for the objects of 'persons'; use another model"):
        models.build_dense('mine', 5, (16, 16, 3), task='persons')

    def few_sizes(outputs, compute, output_stride):
        scale = decoders.Scale(8, 8, 32, Settings(sizes=(4, 8)))
        return models.EncoderDecoder(SceneEncoder(), nn.Dense(outputs), SceneEncoder(), lambda side: scale)

    monkeypatch.setitem(models.DENSE_ARCHITECTURES, 'mine', few_sizes)
    with pytest.raises(UserError, match='a pyramid of 4 levels, but 2 have sizes of anchors; give each'):
        models.build_dense('mine', 5, (16, 16, 3), task='instances')


@pytest.mark.slow
@pytest.mark.parametrize('task', ['persons', 'panoptic'])
def test_costs_of_training_are_those_of_the_losses(task, monkeypatch):
    """Bytes of all parameters, and more work backward than forward, where predictions read no more boxes."""
    whole = toy_objects.scale(32)
    alike = whole._replace(settings=whole.settings._replace(detections=2))  # a quarter of the 8 samples have a mask
    monkeypatch.setattr(toy_objects, 'scale', lambda side: alike)
    toy_objects.small_model(monkeypatch)
    spec = DenseSpec('scene_net', 5, (32, 32, 3), 8, task, stuff=2 * (task == 'panoptic'))
    pieces = measure(spec)
    model = models.build_dense(**spec._asdict())
    variables = jax.eval_shape(model.init, jax.random.key(0))
    count = sum(leaf.size for leaf in jax.tree.leaves((variables.bottom, variables.top)))
    assert pieces.whole_bytes == 4 * count
    assert pieces.top_work.train > 2 * pieces.top_work.forward > 0
