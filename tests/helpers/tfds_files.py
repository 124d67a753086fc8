"""Small synthetic data sets in files: images, and the directories of tensorflow-datasets."""

import io

import numpy as np
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image

from tests.helpers.settings import data_options


def options_of(root, **changes):
    return data_options(data_dir=str(root / 'tfds'), cache_dir=str(root / 'cache'), **changes)


def encoded(image, kind='PNG'):
    """An image [H, W] or [H, W, C] as files hold it."""
    buffer = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[2:] == (1,) else image).save(buffer, kind, quality=100)
    return buffer.getvalue()


def pixels(count, shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def classes(count):
    return tfds.features.ClassLabel(num_classes=count)


def write(root, name, version, splits, features):
    """Writes the directory tfds/`name` of array_record files, two for each split; `splits`: split -> examples."""
    directory = root / 'tfds' / name / version
    directory.mkdir(parents=True)
    features, infos, base = tfds.features.FeaturesDict(features), [], name.partition('/')[0]
    for split, examples in splits.items():
        shards = [examples[: len(examples) // 2], examples[len(examples) // 2 :]]
        written = 0
        for number, shard in enumerate(shards):
            file = directory / f'{base}-{split}.array_record-{number:05}-of-{len(shards):05}'
            writer = ArrayRecordWriter(str(file), 'group_size:1')
            for example in shard:
                record = features.serialize_example(example)
                written += len(record)
                writer.write(record)
            writer.close()
        template = tfds.core.ShardedFileTemplate(
            dataset_name=base, data_dir=directory, split=split, filetype_suffix='array_record'
        )
        lengths = [len(shard) for shard in shards]
        infos.append(
            tfds.core.SplitInfo(name=split, shard_lengths=lengths, num_bytes=written, filename_template=template)
        )
    tfds.folder_dataset.write_metadata(
        data_dir=str(directory), features=features, split_infos=infos, version=version, check_data=False
    )


def write_images(root, name, splits, label, shape=None, version='1.0.0'):
    """Images, uint8, by class; `splits`: split -> (images, labels), `label`: its feature, `shape`: as declared."""
    shape = shape or np.shape(splits['train' if 'train' in splits else 'test'][0])[1:]
    features = {'image': tfds.features.Image(shape=shape), 'label': label, 'id': tfds.features.Text()}
    examples = {
        split: [{'image': encoded(image), 'label': int(k), 'id': ''} for image, k in zip(images, labels, strict=True)]
        for split, (images, labels) in splits.items()
    }
    write(root, name, version, examples, features)
