"""Data sets whose shapes are known in advance. A set that a reader of this package can read takes one line here."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

Normalization = tuple[tuple[float, ...], tuple[float, ...]]  # mean and deviation per channel, in units of [0, 1]


class Known(NamedTuple):
    """The shapes of a data set."""

    train: int  # labeled training images
    unlabeled: int
    test: int
    image: tuple[int, int, int]  # H, W, C
    classes: int
    # From the authors' code for the first data sets of the paper, published with CINIC-10, and measured on the training
    # images of MNIST and Fashion-MNIST. None: measured on loading
    normalization: Normalization | None = None
    outputs: Mapping[str, int] = MappingProxyType({})  # by dense task, in the order of the maps
    original: tuple[int, int] | None = None  # H, W of the largest test map, if test maps keep the original sizes
    # By task of objects: the most in an image, and the side of a mask over its box, a multiple of 8; 0: there are none
    objects: Mapping[str, tuple[int, int]] = MappingProxyType({})


# Also for photographs of dense tasks, as in code for multi-task learning (Vandenhende et al., 2022)
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CINIC10 = ((0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835))
_SCENES = {'semseg': 11, 'parts': 5, 'saliency': 1, 'edges': 1, 'depth': 1, 'stuff': 6, 'keypoints': 2}
_SCENES |= {'instances': 10, 'panoptic': 16, 'persons': 5}
_IN_SCENES = {'instances': (4, 32), 'panoptic': (4, 32), 'persons': (4, 0)}
_CONTEXT = {'semseg': 21, 'parts': 7, 'saliency': 1, 'edges': 1}
_COCO = {'instances': 80, 'panoptic': 133, 'persons': 17, 'stuff': 92}  # the same; stuff of COCO-Stuff
# The most in a picture are 93 instances and, in code for associative embedding, 30 people
_IN_COCO = {'instances': (100, 56), 'panoptic': (100, 56), 'persons': (30, 0)}
_PANOPTIC = {'semseg': 133, 'stuff': 54, 'edges': 1}  # COCO: 80 things, then 53 kinds of stuff; stuff 0: a thing

KNOWN = {
    'digits': Known(1_437, 0, 360, (8, 8, 1), 10),
    'mnist': Known(60_000, 0, 10_000, (28, 28, 1), 10, ((0.1307,), (0.3081,))),
    'fashion_mnist': Known(60_000, 0, 10_000, (28, 28, 1), 10, ((0.2860,), (0.3530,))),
    'cifar10': Known(50_000, 0, 10_000, (32, 32, 3), 10, ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))),
    'cifar100': Known(50_000, 0, 10_000, (32, 32, 3), 100),
    'cinic10': Known(90_000, 0, 90_000, (32, 32, 3), 10, _CINIC10),
    'svhn_cropped': Known(73_257, 0, 26_032, (32, 32, 3), 10, ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))),
    'stl10': Known(5_000, 100_000, 8_000, (96, 96, 3), 10, ((0.4408, 0.4279, 0.3867), (0.2683, 0.2610, 0.2687))),
    # ImageNet has at most 1,300 training and exactly 50 validation images per class.
    'image100': Known(130_000, 0, 5_000, (144, 144, 3), 100, IMAGENET),
    'digit_scenes': Known(2_000, 0, 400, (48, 48, 3), 10, None, _SCENES, None, _IN_SCENES),
    'mnist_scenes': Known(
        10_000, 0, 2_000, (48, 48, 3), 10, None, _SCENES | {'stuff': 10, 'panoptic': 20}, None, _IN_SCENES
    ),
    'pascal_context': Known(4_998, 0, 5_105, (512, 512, 3), 21, IMAGENET, _CONTEXT, (500, 500)),
    'oxford_iiit_pet': Known(3_680, 0, 3_669, (128, 128, 3), 37, IMAGENET, {'semseg': 3, 'saliency': 1}),
    'coco/2017_panoptic': Known(118_287, 0, 5_000, (256, 256, 3), 133, IMAGENET, _PANOPTIC, (640, 640)),
    'coco': Known(118_287, 0, 5_000, (256, 256, 3), 80, IMAGENET, _COCO, (640, 640), _IN_COCO),
}
