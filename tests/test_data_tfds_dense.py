"""Oxford-IIIT Pet and COCO's panoptic segmentation, with the features that tensorflow-datasets gives them."""

import io

import numpy as np
import pytest
from PIL import Image

from semisfl_jax import data
from semisfl_jax.data import fake
from tests.tfds_files import options_of

tfds = pytest.importorskip('tensorflow_datasets')


def encoded(image, kind='PNG'):
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind, quality=100)
    return buffer.getvalue()


def write(root, name, config, version, features, splits):
    """Writes a TFDS directory in the array_record format: `splits` is split -> list of examples."""
    from array_record.python.array_record_module import ArrayRecordWriter

    directory = root / 'tfds' / name / config / version
    directory.mkdir(parents=True)
    features, infos = tfds.features.FeaturesDict(features), []
    for split, examples in splits.items():
        writer = ArrayRecordWriter(str(directory / f'{name}-{split}.array_record-00000-of-00001'), 'group_size:1')
        records = [features.serialize_example(example) for example in examples]
        for record in records:
            writer.write(record)
        writer.close()
        template = tfds.core.ShardedFileTemplate(
            dataset_name=name, data_dir=directory, split=split, filetype_suffix='array_record'
        )
        size = sum(map(len, records))
        infos.append(
            tfds.core.SplitInfo(name=split, shard_lengths=[len(examples)], num_bytes=size, filename_template=template)
        )
    tfds.folder_dataset.write_metadata(
        data_dir=str(directory), features=features, split_infos=infos, version=version, check_data=False
    )


# --- pets


PET_FEATURES = {
    'image': tfds.features.Image(encoding_format='jpeg'),
    'label': tfds.features.ClassLabel(num_classes=37),
    'species': tfds.features.ClassLabel(num_classes=2),
    'file_name': tfds.features.Text(),
    'segmentation_mask': tfds.features.Image(shape=(None, None, 1), use_colormap=True),
    'head_bbox': tfds.features.BBoxFeature(),
}


def trimap(height, width):
    """A pet, 1, in rows and columns from a quarter to three quarters, within a border, 3, of an eighth; 2 around it."""
    made = np.full((height, width), 2, np.uint8)
    made[height // 8 : 7 * height // 8, width // 8 : 7 * width // 8] = 3
    made[height // 4 : 3 * height // 4, width // 4 : 3 * width // 4] = 1
    return made


def pet(row, shape=(16, 24), mask=None):
    return {
        'image': encoded(np.full((*shape, 3), 10 * row, np.uint8), 'JPEG'),
        'label': row % 37,
        'species': row % 2,
        'file_name': f'{row}.jpg',
        'segmentation_mask': encoded(trimap(*shape) if mask is None else mask),
        'head_bbox': tfds.features.BBox(0.0, 0.0, 1.0, 1.0),
    }


def test_pets_come_with_their_trimaps(tmp_path):
    train, test = [pet(row, (16 + 8 * (row % 2), 24)) for row in range(10)], [pet(row) for row in range(20, 23)]
    write(tmp_path, 'oxford_iiit_pet', '', '4.0.0', PET_FEATURES, {'train': train, 'test': test})
    loaded = data.load(options_of(tmp_path, name='oxford_iiit_pet', image_size=8))
    assert (loaded.name, loaded.num_classes) == ('oxford_iiit_pet', 37)
    assert loaded.train_images.shape == (10, 8, 8, 3)
    assert loaded.train_images[:, 4, 4, 0].tolist() == pytest.approx([10 * row for row in range(10)], abs=1)
    assert loaded.train_labels.tolist() == list(range(10))
    assert loaded.test_labels.tolist() == [20, 21, 22]
    assert {task: targets.outputs for task, targets in loaded.targets.items()} == {'semseg': 3, 'saliency': 1}
    semseg = np.zeros((8, 8), int)
    semseg[1:7, 1:7] = 2
    semseg[2:6, 2:6] = 1
    for split in loaded.targets['semseg'][:2]:
        np.testing.assert_array_equal(split, np.broadcast_to(semseg, split.shape))
    saliency = np.where(semseg == 2, 255, semseg)
    for split in loaded.targets['saliency'][:2]:
        np.testing.assert_array_equal(split, np.broadcast_to(saliency, split.shape))
    assert data.load(options_of(tmp_path, name='oxford_iiit_pet')).test_images.shape == (3, 128, 128, 3)
    assert data.shape(options_of(tmp_path, name='oxford_iiit_pet')) == ((128, 128, 3), 37)


# --- COCO


COCO_FEATURES = {
    'image': tfds.features.Image(encoding_format='jpeg'),
    'image/filename': tfds.features.Text(),
    'image/id': tfds.features.Scalar(np.int64),
    'panoptic_image': tfds.features.Image(encoding_format='png'),
    'panoptic_image/filename': tfds.features.Text(),
    'panoptic_objects': tfds.features.Sequence(
        {
            'id': np.int64,
            'area': np.int64,
            'bbox': tfds.features.BBoxFeature(),
            'label': tfds.features.ClassLabel(num_classes=133),
            'is_crowd': np.bool_,
        }
    ),
}
# Segments of every byte of an id, of two things of one class, and of stuff: id -> class
PERSON, OTHER, GRASS, LAST = 7, 7 + 256, 5 + 3 * 256 + 9 * 256**2, 2 * 256**2
SEGMENTS = {GRASS: 85, PERSON: 0, LAST: 132, OTHER: 0}


def segments():
    """8 × 8: two persons side by side, stuff below them, and a column of no segment on the right."""
    ids = np.zeros((8, 8), int)
    ids[:4, :3], ids[:4, 3:7], ids[4:, :7], ids[7, :2] = PERSON, OTHER, GRASS, LAST
    return ids


def coco(row, ids=None, objects=SEGMENTS, scale=4):
    ids = segments() if ids is None else ids
    color = np.stack([ids % 256, ids // 256 % 256, ids // 256**2], axis=-1).astype(np.uint8)
    large = color.repeat(scale, axis=0).repeat(scale, axis=1)
    return {
        'image': encoded(np.full((*large.shape[:2], 3), 20 * row, np.uint8), 'JPEG'),
        'image/filename': f'{row}.jpg',
        'image/id': row,
        'panoptic_image': encoded(large),
        'panoptic_image/filename': f'{row}.png',
        'panoptic_objects': [
            {'id': number, 'area': 9, 'bbox': tfds.features.BBox(0.0, 0.0, 1.0, 1.0), 'label': k, 'is_crowd': k == 0}
            for number, k in objects.items()
        ],
    }


def write_coco(root, train, test):
    splits = {'train': train, 'validation': test}
    write(root, 'coco', '2017_panoptic', '1.1.0', COCO_FEATURES, splits)


def test_coco_comes_with_its_segments(tmp_path):
    empty = coco(3, np.zeros((8, 8), int), {})
    write_coco(tmp_path, [coco(row, scale=2 + row) for row in range(3)] + [empty], [coco(5, scale=1), coco(6, scale=3)])
    options = options_of(tmp_path, name='coco/2017_panoptic', image_size=8)
    loaded = data.load(options)
    assert (loaded.name, loaded.num_classes) == ('coco/2017_panoptic', 133)
    assert loaded.train_images.shape == (4, 8, 8, 3)
    outputs = {task: targets.outputs for task, targets in loaded.targets.items()}
    assert outputs == {'semseg': 133, 'stuff': 54, 'edges': 1}
    assert loaded.train_images[:, 0, 0, 0].tolist() == pytest.approx([0, 20, 40, 60], abs=1)
    assert loaded.train_labels.tolist() == [0, 0, 0, -1]  # 28 pixels of persons, 26 of grass, 2 of the last class
    assert loaded.test_labels.tolist() == [0, 0]
    semseg = np.full((8, 8), 255)
    semseg[:4, :7], semseg[4:, :7], semseg[7, :2] = 0, 85, 132
    stuff = np.full((8, 8), 255)
    stuff[:4, :7], stuff[4:, :7], stuff[7, :2] = 0, 85 - 79, 132 - 79
    edges = np.zeros((8, 8), int)
    edges[:4, 2] = 1  # between the two persons
    edges[3, :6] = 1  # between persons and grass
    edges[6, :2], edges[7, 1] = 1, 1  # around the last
    edges[:, 6:] = 255  # next to pixels of no segment, and these
    for task, expected in (('semseg', semseg), ('stuff', stuff), ('edges', edges)):
        for target in loaded.targets[task].train[:3]:
            np.testing.assert_array_equal(target, expected, task)
        assert (loaded.targets[task].train[3] == 255).all()
    assert loaded.test_sizes.tolist() == [[8, 8], [24, 24]]  # maps for testing are as large as the image was
    for task, expected in (('semseg', semseg), ('stuff', stuff), ('edges', edges)):
        target = loaded.targets[task].test
        assert target.shape == (2, 640, 640)
        np.testing.assert_array_equal(target[0, :8, :8], expected, task)
        if task != 'edges':  # which remain a pixel wide
            np.testing.assert_array_equal(target[1, :24, :24], expected.repeat(3, 0).repeat(3, 1), task)
        assert (target[0, 8:] == 255).all()
        assert (target[0, :, 8:] == 255).all()
    assert 0 < np.sum(loaded.targets['edges'].test[1] == 1) < 3 * 1.5 * np.sum(edges == 1)
    assert loaded.checksum == data.load(options).checksum
    assert data.shape(options_of(tmp_path, name='coco/2017_panoptic')) == ((256, 256, 3), 133)


@pytest.mark.parametrize(
    ('name', 'shape', 'counts'),
    [('oxford_iiit_pet', (128, 128, 3), (3680, 3669)), ('coco/2017_panoptic', (256, 256, 3), (118287, 5000))],
)
def test_made_up_images_have_the_shapes(tmp_path, name, shape, counts):
    outline = data.outline(options_of(tmp_path, name=name, fake=True))
    assert outline.image == shape
    assert fake.counts(name) == (counts[0], 0, counts[1])
    made = data.load(options_of(tmp_path, name=name, fake=True, fake_size=40, image_size=16))
    assert made.train_images.shape == (40, 16, 16, 3)
    for task, targets in made.targets.items():
        assert targets.outputs == outline.outputs[task]
        assert targets.train.shape == (40, 16, 16)
        assert targets.train[targets.train != 255].max() < max(2, targets.outputs)
