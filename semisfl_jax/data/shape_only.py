"""Data sets of true shapes without images, for programs that are compiled and never run."""

from __future__ import annotations

import numpy as np
from ml_collections import ConfigDict

from semisfl_jax.data import dataset, fake, sources


def shape_only_dataset(options: ConfigDict) -> dataset.Dataset:
    """The data set that `config.data` asks for, every image of it one and the same byte: it takes no memory.

    Labels are 0 .. K-1 in turn, so a split that depends on labels is like that of the true data, but not equal to it.
    A set whose shapes are not known in advance is loaded.

    Raises:
      UserError: as `sources.load`.
    """
    if sources.outline(options) is None:
        return sources.load(options)
    (image, classes), name = sources.shape(options), sources.ALIASES.get(options.name, options.name)
    labeled, unlabeled, test = fake.counts(name, options.fake_size if options.fake else 0)
    train_labels = np.arange(labeled + unlabeled, dtype=np.int32) % classes
    train_labels[labeled:] = -1
    outputs, original = fake.SHAPES[name].outputs, fake.SHAPES[name].original
    maps = original or image[:2]
    return dataset.Dataset(
        name=name,
        train_images=_filled(labeled + unlabeled, *image),
        train_labels=train_labels,
        test_images=_filled(test, *image),
        test_labels=np.arange(test, dtype=np.int32) % classes,
        num_classes=classes,
        mean=(0.5,) * image[2],
        std=(0.5,) * image[2],
        fake=True,
        checksum='',
        targets={
            task: dataset.Targets(_filled(labeled + unlabeled, *image[:2]), _filled(test, *maps), number)
            for task, number in outputs.items()
        },
        test_sizes=np.broadcast_to(np.array(original, np.int32), (test, 2)) if original else None,
    )


def _filled(*shape: int) -> np.ndarray:
    return np.broadcast_to(np.uint8(0), shape)
