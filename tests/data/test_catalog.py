"""The shapes of data sets that are known by name."""

import pytest

from semisfl_jax.data.catalog import KNOWN
from semisfl_jax.tasks import make

# Images in all, with labels or without, and classes, as the pages of the data sets state
PUBLISHED = {
    'digits': (1_797, 10),
    'mnist': (70_000, 10),
    'fashion_mnist': (70_000, 10),
    'cifar10': (60_000, 10),
    'cifar100': (60_000, 100),
    'cinic10': (270_000 - 90_000, 10),  # without its validation images
    'svhn_cropped': (99_289, 10),
    'stl10': (113_000, 10),
    'image100': (100 * (1_300 + 50), 100),
    'pascal_context': (10_103, 21),
    'oxford_iiit_pet': (7_349, 37),
    'coco/2017_panoptic': (123_287, 133),
}


@pytest.mark.parametrize('name', PUBLISHED)
def test_counts_are_those_of_the_publications(name):
    known = KNOWN[name]
    assert (known.train + known.unlabeled + known.test, known.classes) == PUBLISHED[name]


def test_maps_have_as_many_numbers_as_their_task_has_outputs():
    for known in KNOWN.values():
        for task, outputs in known.outputs.items():
            assert make(task, outputs).outputs == outputs
