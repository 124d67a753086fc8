"""Mask R-CNN beside torchvision's (losses of the same samples, weights, predictions), by hand, and in training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax.models.detection import heads, losses, mask_rcnn, proposals, roi_align, weights
from semisfl_jax.models.resnet import ResNet
from tests.helpers import convolution
from tests.models.detection.test_boxes import bilinear, some_boxes

IMAGE = 64, 96


def torchvision():
    """Its module of detectors, or the test is skipped."""
    pytest.importorskip('torch')
    pytest.importorskip('torchvision.ops', exc_type=ImportError)
    from torchvision.models import detection

    return detection


def as_torch(x):
    import torch

    return torch.tensor(np.asarray(x))


# --- by hand, or beside twins in NumPy


def test_a_pyramid_adds_enlarged_maps():
    rng = np.random.default_rng(0)
    maps = [rng.normal(size=(1, *shape)).astype(np.float32) for shape in ((7, 5, 3), (4, 3, 2))]
    fpn = heads.FPN(4)
    variables = fpn.init(jax.random.key(0), maps, False)
    layers = jax.tree.map(np.asarray, variables['params'])

    def layer(name, x, padding):
        return convolution.convolve(x, layers[name]['kernel'], padding) + layers[name]['bias']

    coarse, fine = layer('inner_blocks_1', maps[1], 0), layer('inner_blocks_0', maps[0], 0)
    for i in range(7):
        for j in range(5):
            fine[:, i, j] += coarse[:, i * 4 // 7, j * 3 // 5]
    expected = [layer('layer_blocks_0', fine, 1), layer('layer_blocks_1', coarse, 1)]
    expected.append(expected[1][:, [0, 2]][:, :, [0, 2]])
    for ours, theirs in zip(fpn.apply(variables, maps, False), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_doubled_map_has_four_products_for_each_pixel():
    x = np.random.default_rng(0).normal(size=(2, 3, 2, 5)).astype(np.float32)
    layer = heads.Doubled(4)
    variables = layer.init(jax.random.key(0), x)
    y = np.asarray(layer.apply(variables, x))
    kernel, bias = (np.asarray(variables['params'][name]) for name in ('kernel', 'bias'))
    assert y.shape == (2, 6, 4, 4)
    np.testing.assert_allclose(y[1, 5, 2], kernel[1, 0] @ x[1, 2, 1] + bias, atol=1e-5)


def test_losses_by_hand():
    """With beta = 1/9: an error of 0.1 costs 0.01 * 9 / 2, one of 1 costs 1 - 1/18; logits of 0 cost log 2."""
    zeros, two = jnp.zeros((3, 4)), np.log(2)
    offsets = zeros.at[0, :2].set(jnp.array([0.1, -1])).at[1].set(7)  # only the first sample is positive
    positive, there = jnp.array([True, False, False]), jnp.array([True, True, False])
    parts = losses.anchor_losses(jnp.zeros(3), offsets, zeros, positive, there)
    np.testing.assert_allclose(parts['objectness'], (2 * two, 2), rtol=1e-6)
    np.testing.assert_allclose(parts['anchors'], (0.045 + 17 / 18, 2), rtol=1e-5)
    labels = jnp.array([2, 0, 1])
    by_class = jnp.full((3, 3, 4), 9.0).at[0, 2].set(offsets[0])
    parts = losses.box_losses(jnp.zeros((3, 3)), by_class, zeros, labels, there)
    np.testing.assert_allclose(parts['classes'], (2 * np.log(3), 2), rtol=1e-6)
    np.testing.assert_allclose(parts['boxes'], (0.045 + 17 / 18, 2), rtol=1e-5)
    logits = jnp.full((3, 2, 2, 3), 50.0).at[0, ..., 2].set(0)
    parts = losses.mask_losses(logits, jnp.ones((3, 2, 2)), jnp.array([2, 0, 0]))
    np.testing.assert_allclose(parts['masks'], (two, 1), rtol=1e-6)
    means = losses.means({'masks': (jnp.array([2.0, 4.0]), jnp.array([1, 2])), 'none': (jnp.zeros(2), jnp.zeros(2))})
    assert jax.tree.map(float, means) == {'masks': 2, 'none': 0}


def test_masks_are_cropped_by_the_mean_of_samples():
    """Twin in plain Python: as many samples along a bin as it has pixels, rounded up."""
    rng = np.random.default_rng(1)
    masks = (rng.uniform(size=(2, 40, 48)) < 0.5).astype(np.uint8)
    found = np.array([[3, 5, 4.5, 6], [0, 0, 48, 40], [10.5, 2.25, 40, 33]], np.float32)
    index = np.array([0, 1, 1])
    got = roi_align.crop(masks, index, found, 5)
    for box, i, ours in zip(found, index, got, strict=True):
        w, h = np.maximum(box[2:] - box[:2], 1) / 5
        y, x = ((np.arange(count) + 0.5) / count for count in (int(np.ceil(h)), int(np.ceil(w))))
        for row in range(5):
            for column in range(5):
                of_bin = [
                    bilinear(masks[i].astype(float), box[1] + (row + a) * h, box[0] + (column + b) * w)
                    for a in y
                    for b in x
                ]
                np.testing.assert_allclose(ours[row, column], np.mean(of_bin), atol=1e-4)


def test_proposals_by_hand():
    """Level 0 has three anchors, of which two go before suppression; level 1 has one, which is empty when clipped."""
    anchors = [jnp.array([[0.0, 0, 10, 10], [1, 0, 11, 10], [20, 20, 30, 30]]), jnp.array([[70.0, 0, 80, 8]])]
    objectness = jnp.array([1.0, 3, 2]), jnp.array([9.0])
    offsets = jnp.zeros((3, 4)).at[2, 0].set(0.5), jnp.zeros((1, 4))
    select = proposals.propose
    found, there = select(objectness, offsets, anchors, jnp.array([28, 64]), (3, 4), 0.7)
    assert np.asarray(found)[np.asarray(there)].tolist() == [
        [1, 0, 11, 10],
        [25, 20, 35, 28],
    ]  # the first overlaps 9/11
    _, there = select(objectness, offsets, anchors, jnp.array([28, 64]), (3, 4), 0.9)
    assert there.tolist() == [True] * 3 + [False]
    found, there = select(objectness, offsets, anchors, jnp.array([28, 90]), (1, 4), 0.9)
    assert np.asarray(found)[np.asarray(there)].tolist() == [[70, 0, 80, 8], [1, 0, 11, 10]]


def test_detections_by_hand():
    """Two classes, two proposals that overlap by 9/11: the better one of each class stays, if it is probable."""
    boxes = jnp.array([[0.0, 0, 10, 10], [1, 0, 11, 10], [0, 0, 10, 10]])
    share = np.array([[0.2, 0.5, 0.3], [0.08, 0.9, 0.02], [0, 0, 1]])  # the last is not there
    there = jnp.array([True, True, False])
    found, scores, labels, valid = proposals.detect(
        jnp.log(share), jnp.zeros((3, 3, 4)), boxes, there, jnp.array([20, 20]), 0.05, 0.5, 4
    )
    assert valid.tolist() == [True, True, False, False]
    assert found[:2].tolist() == [[1, 0, 11, 10], [0, 0, 10, 10]]
    assert labels[:2].tolist() == [1, 2]
    np.testing.assert_allclose(scores, [0.9, 0.3, 0, 0], rtol=1e-6)


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


# --- the whole of it, narrow

KEY = jax.random.key(3)
SMALL = mask_rcnn.Settings(
    sizes=(8, 16, 32), anchors=16, proposals_train=(20, 16), proposals=(10, 8), samples=8, detections=5, least=0.0
)


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
    objects = proposals.Objects(*map(jnp.asarray, (found, labels, masks, valid)))
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


def test_a_name_for_each_parameter(small):
    """As in torchvision's state dict; those of today and older ones."""
    import flax

    names = {weights.torch_name(parts) for parts in flax.traverse_util.flatten_dict(small[1])}
    assert names == {
        f'{name}.{end}'
        for end in ('weight', 'bias')
        for name in (
            *(f'backbone.fpn.{kind}_blocks.{i}.0' for kind in ('inner', 'layer') for i in range(2)),
            *(f'rpn.head.{name}' for name in ('conv.0.0', 'cls_logits', 'bbox_pred')),
            *(f'roi_heads.box_head.{name}' for name in ('fc6', 'fc7')),
            *(f'roi_heads.box_predictor.{name}' for name in ('cls_score', 'bbox_pred')),
            *(f'roi_heads.mask_head.{i}.0' for i in range(4)),
            *(f'roi_heads.mask_predictor.{name}' for name in ('conv5_mask', 'mask_fcn_logits')),
        )
    }


# --- torchvision


def test_losses_of_the_same_samples_are_those_of_torchvision():
    detection = torchvision()
    import torch
    from torchvision.models.detection import roi_heads

    rng = np.random.default_rng(0)
    count, there = 24, np.arange(24) < 20
    labels = np.where(np.arange(count) < 6, rng.integers(1, 4, count), 0)
    logits, offsets = rng.normal(size=(count, 4)), rng.normal(size=(count, 4, 4))
    targets = offsets[:, 2] + 0.3 * rng.normal(size=(count, 4))
    logits, offsets, targets = (x.astype(np.float32) for x in (logits, offsets, targets))

    def ours(parts):
        return [total / number for total, number in parts.values()]

    expected = roi_heads.fastrcnn_loss(
        as_torch(logits[there]), as_torch(offsets[there].reshape(20, -1)), [as_torch(labels[there])],
        [as_torch(targets[there])],
    )  # fmt: skip
    np.testing.assert_allclose(ours(losses.box_losses(logits, offsets, targets, labels, there)), expected, rtol=1e-5)

    class Fixed(detection.rpn.RegionProposalNetwork):
        def __init__(self):
            torch.nn.Module.__init__(self)
            self.fg_bg_sampler = lambda labels: ([labels[0] == 1], [labels[0] == 0])

    of_anchors = np.where(there, labels > 0, -1).astype(np.float32)  # -1: not drawn
    expected = Fixed().compute_loss(
        as_torch(logits[:, 0]), as_torch(offsets[:, 0]), [as_torch(of_anchors)], [as_torch(targets)]
    )
    parts = losses.anchor_losses(logits[:, 0], offsets[:, 0], targets, labels > 0, there)
    np.testing.assert_allclose(ours(parts), expected, rtol=1e-5)

    masks = (rng.uniform(size=(3, 64, 96)) < 0.5).astype(np.uint8)
    found = np.concatenate([some_boxes(5), [[0, 0, 96, 64]]]).astype(np.float32)
    of_objects, index = np.array([1, 3, 2]), np.array([0, 1, 2, 2, 1, 0])
    of_masks = rng.normal(size=(6, 28, 28, 4)).astype(np.float32)
    expected = roi_heads.maskrcnn_loss(
        as_torch(of_masks.transpose(0, 3, 1, 2)), [as_torch(found)], [as_torch(masks)], [as_torch(of_objects)],
        [as_torch(index)],
    )  # fmt: skip
    cropped = roi_align.crop(masks, index, found, 28)
    np.testing.assert_allclose(ours(losses.mask_losses(of_masks, cropped, of_objects[index])), [expected], rtol=1e-5)


@pytest.mark.slow
def test_weights_and_predictions_are_those_of_torchvision(tmp_path):
    """The whole Mask R-CNN on ResNet-50, with random weights that spread scores, boxes and masks."""
    detection = torchvision()
    import torch

    torch.manual_seed(0)
    theirs = detection.maskrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=4, min_size=IMAGE[0], max_size=IMAGE[1],
        image_mean=[0.0] * 3, image_std=[1.0] * 3, rpn_pre_nms_top_n_test=40, rpn_post_nms_top_n_test=30,
        box_detections_per_img=20, box_score_thresh=0.1,
    )  # fmt: skip
    images, means = torch.randn(2, 3, *IMAGE), []
    with torch.no_grad():
        theirs.train()
        theirs.backbone(images)  # moves the running statistics, so that activations stay moderate
        for name, parameter in theirs.named_parameters():
            if name.endswith(('bbox_pred.weight', 'head.cls_logits.weight')):
                parameter *= 8
        theirs.eval()
        scores = theirs.roi_heads.box_predictor.cls_score
        hook = scores.register_forward_hook(lambda module, inputs, logits: means.append(logits.mean(0)))
        theirs(list(images))
        hook.remove()
        scores.bias -= means[0]  # no class is ahead everywhere
        expected = theirs(list(images))
    torch.save(theirs.state_dict(), tmp_path / 'today.pth')
    older = {
        name.replace('mask_head.0.0.', 'mask_head.mask_fcn1.').replace('rpn.head.conv.0.0.', 'rpn.head.conv.'): tensor
        for name, tensor in theirs.state_dict().items()
    }
    torch.save(older, tmp_path / 'older.pth')

    encoder = ResNet((3, 4, 6, 3), True, 32, (2, 3, 4, 5))
    settings = mask_rcnn.Settings(proposals=(40, 30), detections=20, least=0.1)
    decoder = mask_rcnn.MaskRCNN(3, IMAGE, settings)
    x = jnp.asarray(images.permute(0, 2, 3, 1).numpy())
    body = encoder.lazy_init(jax.random.key(0), jax.ShapeDtypeStruct(x.shape, x.dtype), False)
    maps = jax.eval_shape(lambda v, x: encoder.apply(v, x, False), body, x)
    rest = decoder.lazy_init(jax.random.key(0), maps)
    loaded = weights.load(str(tmp_path / 'today.pth'), body, rest)
    again = weights.load(str(tmp_path / 'older.pth'), body, rest)
    assert jax.tree.all(jax.tree.map(np.array_equal, loaded, again))
    published, _ = weights.load(str(tmp_path / 'today.pth'), body, rest, epsilon=0.0)  # theirs: x / sqrt(var + 0)
    variances = (v['batch_stats']['conv1']['norm']['var'] for v in (published, loaded[0]))
    np.testing.assert_allclose(next(variances) + 1e-5, next(variances), rtol=1e-6)
    found = jax.jit(lambda v, w, x: decoder.apply(w, encoder.apply(v, x, False)))(*loaded, x)
    for i, theirs in enumerate(expected):
        there = np.asarray(found.valid[i])
        boxes, scores, labels, masks = (np.asarray(leaf[i])[there] for leaf in found[:-1])
        assert len(labels) == 20
        assert len({*labels.tolist()}) > 1
        np.testing.assert_array_equal(labels, theirs['labels'])
        np.testing.assert_allclose(scores, theirs['scores'], atol=1e-4)
        np.testing.assert_allclose(boxes, theirs['boxes'], atol=1e-3, rtol=1e-4)
        np.testing.assert_allclose(mask_rcnn.paste(masks, boxes, *IMAGE), theirs['masks'][:, 0], atol=1e-4)
