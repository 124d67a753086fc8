"""Small synthetic data sets in the files of tensorflow-datasets."""

import io

import numpy as np
import pytest
from PIL import Image

from configs.default import get_config

tfds = pytest.importorskip('tensorflow_datasets')


def options_of(root, **changes):
    options = get_config().data
    options.update(data_dir=str(root / 'tfds'), cache_dir=str(root / 'cache'), **changes)
    return options


def png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(buffer, 'PNG')
    return buffer.getvalue()


def write(root, name, version, splits, image_shape, label, extra=None):
    """Writes a TFDS directory in the array_record format.

    Args:
      root: its `tfds` gets the files.
      name, version: of the data set.
      splits: split -> (images, list of [H, W, C] uint8; labels).
      image_shape: as the features declare it.
      label: the label feature.
      extra: name -> (feature, value), a further feature of every example.
    """
    from array_record.python.array_record_module import ArrayRecordWriter

    extra = extra or {}
    directory = root / 'tfds' / name / version
    directory.mkdir(parents=True)
    features = tfds.features.FeaturesDict(
        {'image': tfds.features.Image(shape=image_shape), 'label': label} | {k: f for k, (f, _) in extra.items()}
    )
    infos = []
    for split, (images, labels) in splits.items():
        shards = [slice(0, len(images) // 2), slice(len(images) // 2, None)]
        written = 0
        for number, shard in enumerate(shards):
            file = directory / f'{name}-{split}.array_record-{number:05}-of-{len(shards):05}'
            writer = ArrayRecordWriter(str(file), 'group_size:1')
            for image, k in zip(images[shard], labels[shard], strict=True):
                example = {'image': png(image), 'label': int(k)} | {key: value for key, (_, value) in extra.items()}
                record = features.serialize_example(example)
                written += len(record)
                writer.write(record)
            writer.close()
        template = tfds.core.ShardedFileTemplate(
            dataset_name=name, data_dir=directory, split=split, filetype_suffix='array_record'
        )
        lengths = [len(labels[shard]) for shard in shards]
        infos.append(
            tfds.core.SplitInfo(name=split, shard_lengths=lengths, num_bytes=written, filename_template=template)
        )
    tfds.folder_dataset.write_metadata(
        data_dir=str(directory), features=features, split_infos=infos, version=version, check_data=False
    )


def pixels(count, shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def classes(count):
    return tfds.features.ClassLabel(num_classes=count)
