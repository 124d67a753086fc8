"""Images that are made up."""

import numpy as np
import pytest

from semisfl_jax import data
from semisfl_jax.data.catalog import KNOWN
from semisfl_jax.tasks import PARTS
from tests.helpers.settings import data_options


@pytest.mark.parametrize('name', KNOWN)
def test_made_up_sets_have_the_true_shapes(name):
    """Images, classes and maps as the outline says before any is made; maps have numbers of their task."""
    side = 16 if KNOWN[name].original else 0
    options = data_options(name=name, fake=True, fake_size=200, image_size=side)
    made, outline = data.load(options), data.outline(options)
    assert made.fake
    assert made.outline == outline
    assert len(made.train_images) == 200
    assert len(made.test_images) == max(made.num_classes, 40)
    assert made.train_images.dtype == made.test_images.dtype == np.uint8
    labeled = 100 if name == 'stl10' else 200
    np.testing.assert_array_equal(made.train_labels >= 0, np.arange(200) < labeled)
    assert name == 'stl10' or np.ptp(np.bincount(made.train_labels)) <= 1
    assert len(made.mean) == len(made.std) == outline.image[2]
    for task, targets in made.targets.items():
        if task in PARTS:
            continue
        most = {'saliency': 1, 'edges': 1, 'depth': 254, 'keypoints': 2}.get(task, targets.outputs - 1)
        assert 1 <= targets.train[targets.train != 255].max() <= most
    if made.test_sizes is not None:
        height, width = KNOWN[name].original
        assert made.test_sizes[:2].tolist() == [[height * 3 // 4, width], [height, width * 3 // 4]]
    if name in ('digit_scenes', 'mnist_scenes'):
        np.testing.assert_array_equal(made.targets['semseg'].train > 0, made.targets['saliency'].train == 1)


def test_objects_are_the_rectangle():
    made = data.load(data_options(name='digit_scenes', fake=True, fake_size=40)).targets
    for row, saliency in enumerate(made['saliency'].train):
        rows, columns = np.nonzero(saliency)
        box = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        for task in ('instances', 'panoptic'):
            parts = made[task].train
            assert parts['boxes'][row].tolist() == [box, *[[0] * 4] * 3]
            assert parts['labels'][row].tolist() == [made['semseg'].train[row].max(), 0, 0, 0]
            assert np.unpackbits(parts['masks'][row, 0]).all()
        np.testing.assert_array_equal(made['panoptic'].train['semantic'][row] == 6, saliency == 1)
        joints, visible = (made['persons'].train[part][row] for part in ('joints', 'visible'))
        assert joints[0, [0, -1]].tolist() == [box[:2], [box[2] - 1, box[3] - 1]]
        assert visible.tolist() == [[2] * 5, *[[0] * 5] * 3]


def test_fake_images_are_deterministic_and_learnable():
    options = data_options(name='cifar10', fake=True, fake_size=600)
    first, second = data.load(options), data.load(options)
    assert first.checksum == second.checksum
    assert len(np.unique(first.train_images.reshape(600, -1), axis=0)) == 600
    means = np.stack([first.train_images[first.train_labels == k].mean(axis=0) for k in range(10)])
    distance = ((first.test_images[:, None] - means) ** 2).sum(axis=(2, 3, 4))
    assert (distance.argmin(axis=1) == first.test_labels).mean() > 0.95
