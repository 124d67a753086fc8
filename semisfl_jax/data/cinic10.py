"""CINIC-10: 32 x 32 images of CIFAR-10's classes, from the folder in which it is published or prepared for TFDS.

90,000 images each for training, validation and testing. As in FedDure, the validation images are not used.
"""

from __future__ import annotations

from pathlib import Path

from semisfl_jax.data import folder, tfds_source
from semisfl_jax.data.decode import Source

NAME = 'cinic10'
IMAGE_SIZE = 32
CLASSES = ('airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog', 'horse', 'ship', 'truck')
SPLITS = ('train', 'test')

_ABSENT = (
    "data set 'cinic10' is neither in config.data.data_dir nor known to tensorflow-datasets: download CINIC-10 (Darlow "
    'et al., CINIC-10 Is Not ImageNet or CIFAR-10, 2018) from the DataShare of the University of Edinburgh '
    '(https://doi.org/10.7488/ds/2448), unpack it and set --config.data.image_folder to the directory that has train/ '
    'and test/, or try synthetic images with --config.data.fake=True'
)


def find(image_folder: str, data_dir: str, image_size: int) -> Source:
    """Finds CINIC-10.

    Args:
      image_folder: directory with train/<class>/* and test/<class>/*, '' for a TFDS directory.
      data_dir: TFDS data directory, as in `tfds_source.find`; it may have cinic10/, with splits train and test.
      image_size: side, 0 for 32.

    Raises:
      UserError: the data are absent or incomplete.
    """
    if not image_folder:
        return tfds_source.find(NAME, data_dir, image_size, absent=_ABSENT)
    path = Path(image_folder).expanduser()
    folder.check(path, SPLITS)
    return folder.find(NAME, path, SPLITS, CLASSES, image_size or IMAGE_SIZE, keys='config.data.image_folder')
