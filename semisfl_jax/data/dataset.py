"""The Dataset that every data source returns, and computations that all sources share."""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from semisfl_jax.base.errors import UserError, describe, warn
from semisfl_jax.core import rng
from semisfl_jax.data.apportion import largest_remainder
from semisfl_jax.data.catalog import KNOWN
from semisfl_jax.tasks import PARTS, Task, parts_of
from semisfl_jax.tasks import make as make_task

SPLITS = ('train', 'test')
TEST_SIZES = 'test_sizes'  # array with the sizes of test maps, if these are not the sizes of the images
CLIENT_IDS = 'client_ids'  # array with the client of each training image, if the data say it
ARRAYS = tuple(f'{split}_{kind}' for split in SPLITS for kind in ('images', 'labels'))  # that every data set has
ROWS_AT_ONCE = 4096
DARK = 127  # 8-bit images without a brighter value were not scaled to 0 .. 255
HOLDOUT_SEED = 2020  # fixes the test rows of sets without a test split, independent of the run's seed


class Targets(NamedTuple):
    """The truth of a dense task: a map for every image, 255 (`tasks.IGNORED`) where the truth is unknown.

    In tasks of objects it is a dict of the arrays of `tasks.parts_of`. Those of test images may have more parts, which
    only the scorer reads, at the size of the pictures.
    """

    train: Any  # [n, H, W] uint8
    test: Any  # [m, H, W] uint8, as large as the images or, with `Dataset.test_sizes`, as the largest original
    outputs: int  # `Task.outputs`


class Outline(NamedTuple):
    """The shapes of a data set, without its images."""

    image: tuple[int, int, int]  # H, W, C
    classes: int
    outputs: Mapping[str, int] = MappingProxyType({})  # by dense task
    original: tuple[int, int] | None = None  # H, W of test maps that are not as large as the images
    class_names: tuple[str, ...] = ()  # as in Dataset, or still unknown
    objects: Mapping[str, tuple[int, int]] = MappingProxyType({})  # by task of objects: G and E of `tasks.parts_of`

    def task(self, name: str) -> Task:
        """Builds a dense task that the data set has."""
        stuff = self.outputs[name] - self.outputs['instances'] if name == 'panoptic' else 0
        return make_task(name, self.outputs[name], stuff)

    def parts(self, name: str) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Returns shape and type of the targets of a task of objects, `tasks.parts_of`."""
        return parts_of(name, self.outputs[name], self.image[0], *self.objects[name])


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """One decoded data set. Arrays may be read-only memory maps.

    Labels are -1 where unknown, as for STL-10's unlabeled images, which follow the labeled ones. In sets with dense
    tasks, the label is the class of the largest object; partitions use it to split the images.
    """

    name: str
    train_images: np.ndarray  # [n, H, W, C] uint8
    train_labels: np.ndarray  # [n] int32
    test_images: np.ndarray  # [m, H, W, C] uint8
    test_labels: np.ndarray  # [m] int32
    num_classes: int
    mean: tuple[float, ...]  # [C], of pixels in [0, 1]
    std: tuple[float, ...]  # [C]
    fake: bool  # synthetic images
    checksum: str  # SHA-256 over the name and all arrays
    targets: Mapping[str, Targets] = dataclasses.field(default_factory=dict)  # by dense task; or none
    # [m, 2] int32, height and width of test images before resizing: predictions are resized to this upper left part of
    # the test map. None: test maps are as large as the images
    test_sizes: np.ndarray | None = None
    eval_split: str = 'test'  # 'validation': test_images are training images (`partition.evaluated`)
    class_names: tuple[str, ...] = ()  # [K] in the order of their numbers, or none
    client_ids: np.ndarray | None = None  # [n] int32, the client of each training image; None: a rule splits them

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays present, by the names that `make` takes."""
        targets = {
            target_key(split, task, part): array
            for task, target in self.targets.items()
            for split in SPLITS
            for part, array in by_part(getattr(target, split)).items()
        }
        others = {key: getattr(self, key) for key in (TEST_SIZES, CLIENT_IDS) if getattr(self, key) is not None}
        return {key: getattr(self, key) for key in ARRAYS} | targets | others

    @property
    def outline(self) -> Outline:
        """The shapes, without the images."""
        outputs = {name: target.outputs for name, target in self.targets.items()}
        original = self.map_shape if self.test_sizes is not None else None
        objects = {}
        for name, (train, *_) in self.targets.items():
            if name in PARTS:
                objects[name] = train['masks'].shape[1:3] if 'masks' in train else (train['joints'].shape[1], 0)
        return Outline(self.train_images.shape[1:], self.num_classes, outputs, original, self.class_names, objects)

    @property
    def map_shape(self) -> tuple[int, int] | None:
        """Height and width of test maps, if there are any."""
        shapes = [target.test.shape[1:] for target in self.targets.values() if not isinstance(target.test, Mapping)]
        return shapes[0] if shapes else None


def blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the rows of an array in blocks, for arrays that may be larger than RAM."""
    return (array[start : start + ROWS_AT_ONCE] for start in range(0, len(array), ROWS_AT_ONCE))


def normalization(name: str, images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the mean and standard deviation of a data set, tabulated or measured.

    Args:
      name: the data set.
      images: [n, H, W, C] uint8, measured if the catalog has no values for C channels.

    Returns:
      Mean and standard deviation, [C] each, in units of [0, 1].
    """
    known = KNOWN.get(name.partition(':')[0])  # without TFDS's version
    tabulated = known and known.normalization
    return tabulated if tabulated and len(tabulated[0]) == images.shape[-1] else channel_statistics(images)


def channel_statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Computes the exact mean and standard deviation per channel of images [n, H, W, C] uint8, in units of [0, 1].

    A constant channel gets a deviation of 1, so that division by it is defined.
    """
    channels = images.shape[-1]
    counts = np.zeros((channels, 256), np.int64)
    for block in blocks(images):
        for channel in range(channels):
            counts[channel] += np.bincount(block[..., channel].ravel(), minlength=256)
    share = counts / counts.sum(axis=1, keepdims=True)
    values = np.arange(256) / 255
    mean = share @ values
    std = np.sqrt((share * (values - mean[:, None]) ** 2).sum(axis=1))
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())


def checksum(name: str, arrays: dict[str, np.ndarray]) -> str:
    """Computes the SHA-256, in hex, over the name and every array with its name, type and shape."""
    digest = hashlib.sha256(name.encode())
    for key in sorted(arrays):
        array = arrays[key]
        digest.update(f'|{key} {array.dtype.str} {array.shape}|'.encode())
        for block in blocks(array):
            digest.update(np.ascontiguousarray(block).data)
    return digest.hexdigest()


def target_key(split: str, task: str, part: str = '') -> str:
    """Returns the name of the array with the maps of a dense task, or with a part of the targets of one of objects."""
    return f'{split}_target_{task}' + f'.{part}' * bool(part)


def by_part(target: Any) -> dict[str, np.ndarray]:
    """Returns the arrays of a target by part, a map as that of part ''."""
    return dict(target) if isinstance(target, Mapping) else {'': target}


def make(
    name: str,
    arrays: dict[str, np.ndarray],
    num_classes: int,
    fake: bool = False,
    digest: str = '',
    outputs: Mapping[str, int] = MappingProxyType({}),
    class_names: Sequence[str] = (),
) -> Dataset:
    """Builds a checked Dataset from arrays and measures what is missing.

    Args:
      name: the data set.
      arrays: train_images, train_labels, test_images and test_labels; two for each dense task, under `target_key`;
        test_sizes if test maps have sizes of their own; client_ids if the data have clients. As in Dataset.
      num_classes: K.
      fake: the images are synthetic.
      digest: the checksum if already known, '' to compute it.
      outputs: number of outputs of every dense task, in display order.
      class_names: [K] names that figures show instead of class numbers, or none.

    Raises:
      UserError: an array is missing, or has a wrong type, shape or value.
    """
    maps = [target_key(split, task, part) for task in outputs for split in SPLITS for part in PARTS.get(task, ('',))]
    if missing := [key for key in (*ARRAYS, *maps) if key not in arrays]:
        raise UserError(f"data set '{name}': arrays has no {missing[0]}; it has {', '.join(arrays) or 'nothing'}")
    unmeasured = Dataset(
        name=name,
        train_images=arrays['train_images'],
        train_labels=arrays['train_labels'],
        test_images=arrays['test_images'],
        test_labels=arrays['test_labels'],
        num_classes=num_classes,
        mean=(),
        std=(),
        fake=fake,
        checksum='',
        targets={
            task: Targets(_target(arrays, target_key('train', task)), _target(arrays, target_key('test', task)), number)
            for task, number in outputs.items()
        },
        test_sizes=arrays.get(TEST_SIZES),
        class_names=tuple(class_names),
        client_ids=arrays.get(CLIENT_IDS),
    )
    check(name, unmeasured)
    mean, std = normalization(name, arrays['train_images'])
    return dataclasses.replace(unmeasured, mean=mean, std=std, checksum=digest or checksum(name, unmeasured.arrays))


def _target(arrays: Mapping[str, np.ndarray], key: str) -> Any:
    """Returns the maps of a task, or the parts of its targets."""
    parts = {name.removeprefix(f'{key}.'): array for name, array in arrays.items() if name.startswith(f'{key}.')}
    return parts or arrays[key]


def check(name: str, dataset: Any) -> Dataset:
    """Checks what a user's reader returned.

    Args:
      name: the data set.
      dataset: what the reader returned.

    Returns:
      `dataset`.

    Raises:
      UserError: it is not a Dataset, or its arrays have wrong shapes, types or values.
    """
    if not isinstance(dataset, Dataset):
        raise UserError(f"data set '{name}': the reader returns {describe(dataset)}; return what dataset.make makes")
    if not isinstance(dataset.num_classes, (int, np.integer)) or dataset.num_classes < 1:
        raise UserError(f"data set '{name}': num_classes is {describe(dataset.num_classes)}; use an int of at least 1")
    if (named := len(dataset.class_names)) not in (0, dataset.num_classes):
        raise UserError(
            f"data set '{name}': class_names has {named} for {dataset.num_classes} classes; name each, or none"
        )
    arrays, sizes = dataset.arrays, dataset.test_sizes
    for split in SPLITS:
        shape, labels = np.shape(arrays[f'{split}_images']), arrays[f'{split}_labels']
        map_shape = shape[:3]
        if split == 'test' and sizes is not None and dataset.map_shape:  # as large as the largest
            map_shape = (*shape[:1], *dataset.map_shape)
        wanted: dict[str, tuple[Any, type]] = {
            f'{split}_images': ((*shape[:1], *np.shape(dataset.train_images)[1:]), np.uint8),
            f'{split}_labels': (shape[:1], np.integer),
            **{target_key(split, task): (map_shape, np.uint8) for task in dataset.targets if task not in PARTS},
            **{
                target_key(split, task, part): ((*shape[:1], *length), kind)
                for task in dataset.targets.keys() & PARTS.keys()
                for part, (length, kind) in dataset.outline.parts(task).items()
            },
            **({TEST_SIZES: ((*shape[:1], 2), np.integer)} if split == 'test' and sizes is not None else {}),
            **({CLIENT_IDS: (shape[:1], np.integer)} if split == 'train' and CLIENT_IDS in arrays else {}),
        }
        for key, (right, kind) in wanted.items():
            fits = np.shape(arrays[key]) == right and np.issubdtype(getattr(arrays[key], 'dtype', np.object_), kind)
            if not fits or len(shape) != 4 or not shape[0]:
                what = '[n, H, W, C] with n of at least 1' if len(shape) != 4 or not shape[0] else list(right)
                raise UserError(f"data set '{name}': {key} is {describe(arrays[key])}; use {kind.__name__} {what}")
        lowest, highest = -1 if split == 'train' or dataset.targets else 0, dataset.num_classes - 1  # -1: unknown
        if labels.min() < lowest or labels.max() > highest:
            raise UserError(
                f"data set '{name}': {split}_labels are {labels.min()} to {labels.max()}; use {lowest} to {highest}"
            )
    if sizes is not None and (sizes.min() < 1 or (dataset.map_shape and (sizes.max(axis=0) > map_shape[1:]).any())):
        raise UserError(
            f"data set '{name}': {TEST_SIZES} are {sizes.min()} to {sizes.max()}; use 1 to the size of the maps"
        )
    return dataset


def warn_of_images(dataset: Dataset) -> None:
    """Warns if images do not use the range 0 to 255, or if test images are also training images."""
    name, train, test = dataset.name, dataset.train_images, dataset.test_images
    for key, images in {'train_images': train, 'test_images': test}.items():
        if not any(block.max() > DARK for block in blocks(images)):  # usually decided by the first block
            highest = max(int(block.max()) for block in blocks(images))
            warn(
                f"data set '{name}': the largest value of {key} is {highest}, but augmentation expects 0 to 255; "
                'scale the images'
            )
            break
    if leaked := count_in_both(train, test):
        warn(
            f"data set '{name}': {leaked:,} of its {len(test):,} test images are also training images, "
            'so their scores say little; remove them from one of the two'
        )


def count_in_both(train: np.ndarray, test: np.ndarray) -> int:
    """Counts the images of `test` that are in `train`, byte for byte.

    Only images whose middle bytes occur in both sets are read whole. Usually there are none, so the files stay on disk.
    """

    def middle(image: np.ndarray) -> bytes:
        return image.reshape(-1)[image.size // 2 :][:64].tobytes()

    tested = {middle(image) for image in test}
    seen = {hashlib.sha256(image.tobytes()).digest() for image in train if middle(image) in tested}
    return sum(hashlib.sha256(image.tobytes()).digest() in seen for image in test) if seen else 0


def holdout(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Holds out a fixed stratified fifth of labels [n], rounded up; returns training and test rows, ascending."""
    classes, counts = np.unique(labels, return_counts=True)
    generator = rng.host(HOLDOUT_SEED, 'holdout')
    picked = largest_remainder(counts, -(-len(labels) // 5))
    parts = [generator.permutation(np.flatnonzero(labels == c))[:take] for c, take in zip(classes, picked, strict=True)]
    test = np.sort(np.concatenate(parts))
    return np.setdiff1d(np.arange(len(labels)), test), test
