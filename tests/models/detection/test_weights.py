"""State dicts of torchvision, and predictions of the whole Mask R-CNN with them."""

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax.models.detection import mask_rcnn, weights
from semisfl_jax.models.resnet import ResNet
from tests.helpers.detection import torchvision

IMAGE = 64, 96


@pytest.mark.slow
def test_a_name_for_each_parameter():
    """As in torchvision's state dict of today."""
    maps = [jax.ShapeDtypeStruct((1, side, side, 3), np.float32) for side in (16, 8)]
    model = mask_rcnn.MaskRCNN(2, (64, 64), mask_rcnn.Settings(sizes=(8, 16, 32)), width=4, hidden=8)
    variables = model.lazy_init(jax.random.key(0), maps)
    names = {weights.torch_name(parts) for parts in flax.traverse_util.flatten_dict(variables)}
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
    torch.save(theirs.state_dict(), tmp_path / 'today.pth')
    older = {
        name.replace('mask_head.0.0.', 'mask_head.mask_fcn1.').replace('rpn.head.conv.0.0.', 'rpn.head.conv.'): tensor
        for name, tensor in theirs.state_dict().items()
    }
    torch.save(older, tmp_path / 'older.pth')

    with torch.no_grad():
        expected = theirs.double()(list(images.double()))  # whose rounding is not added to ours

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
