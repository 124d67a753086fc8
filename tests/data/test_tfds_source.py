"""Data sets of tensorflow-datasets, read without TensorFlow: small synthetic ones."""

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from semisfl_jax import data
from semisfl_jax.base.errors import UserError
from semisfl_jax.data import tfds_source
from tests.helpers.tfds_files import classes, encoded, options_of, pixels, write, write_images

# --- image classification


def test_svhn_is_read_as_it_was_written(tmp_path):
    train, test = pixels(50, (32, 32, 3)), pixels(21, (32, 32, 3), 1)
    splits = {'train': (train, np.arange(50) % 10), 'test': (test, np.arange(21) % 10)}
    splits['extra'] = (pixels(30, (32, 32, 3), 2), np.arange(30) % 10)
    write_images(tmp_path, 'svhn_cropped', splits, classes(10), version='3.1.0')
    svhn = data.load(options_of(tmp_path, name='svhn_cropped'))
    assert (svhn.name, svhn.num_classes) == ('svhn_cropped', 10)
    assert (svhn.train_images.dtype, svhn.train_labels.dtype) == (np.uint8, np.int32)
    np.testing.assert_array_equal(svhn.train_images, train)  # the split 'extra' is left alone
    np.testing.assert_array_equal(svhn.train_labels, np.arange(50) % 10)
    np.testing.assert_array_equal(svhn.test_images, test)
    np.testing.assert_array_equal(svhn.test_labels, np.arange(21) % 10)
    assert svhn.mean == svhn.std == (0.5, 0.5, 0.5)


def test_stl10_appends_its_unlabeled_split(tmp_path):
    train, test, rest = pixels(20, (96, 96, 3)), pixels(9, (96, 96, 3), 1), pixels(30, (96, 96, 3), 2)
    splits = {'test': (test, np.arange(9)), 'train': (train, np.arange(20) % 10), 'unlabelled': (rest, [-1] * 30)}
    write_images(tmp_path, 'stl10', splits, classes(10))
    stl = data.load(options_of(tmp_path, name='stl10'))
    np.testing.assert_array_equal(stl.train_images, np.concatenate([train, rest]))
    np.testing.assert_array_equal(stl.train_labels, [*(np.arange(20) % 10), *[-1] * 30])
    np.testing.assert_array_equal(stl.test_images, test)
    assert stl.mean == (0.4408, 0.4279, 0.3867)


def test_a_set_that_only_its_files_know_is_read_by_name(tmp_path):
    """It is tested on 'validation', as its test labels are not published."""
    train, hidden, test = (pixels(n, (10, 12, 1), n) for n in (25, 8, 7))
    splits = {'train': (train, np.arange(25) % 4), 'test': (hidden, [-1] * 8), 'validation': (test, np.arange(7) % 4)}
    write_images(tmp_path, 'my_shapes', splits, classes(4), version='2.0.0')
    mine = data.load(options_of(tmp_path, name='my_shapes'))
    np.testing.assert_array_equal(mine.train_images, train)
    np.testing.assert_array_equal(mine.test_images, test)
    assert mine.num_classes == 4
    assert mine.mean == pytest.approx(((train / 255).mean(),))
    assert mine.std == pytest.approx(((train / 255).std(),))


def test_a_set_of_one_split_keeps_a_fifth_for_testing(tmp_path):
    images, labels = pixels(40, (5, 5, 3)), np.arange(40) % 4
    write_images(tmp_path, 'one_split', {'train': (images, labels)}, classes(4))
    made = data.load(options_of(tmp_path, name='one_split'))
    assert np.bincount(made.test_labels).tolist() == [2] * 4
    both = np.concatenate([made.train_images, made.test_images]).reshape(40, -1)
    both_labels = np.concatenate([made.train_labels, made.test_labels])
    mine, theirs = np.lexsort(both.T), np.lexsort(images.reshape(40, -1).T)
    np.testing.assert_array_equal(both[mine], images.reshape(40, -1)[theirs])
    np.testing.assert_array_equal(both_labels[mine], labels[theirs])


def test_unequal_images_need_a_size(tmp_path):
    """Equal ones of undeclared size need none."""
    images = [pixels(1, (5 + i % 2, 7, 3), i)[0] for i in range(8)]
    splits = {'train': (images, np.arange(8) % 2), 'test': (images, np.arange(8) % 2)}
    write_images(tmp_path, 'unequal', splits, classes(2), (None, None, 3))
    with pytest.raises(UserError, match=r'config\.data\.image_size'):
        data.load(options_of(tmp_path, name='unequal'))
    loaded = data.load(options_of(tmp_path, name='unequal', image_size=6))
    expected = [Image.fromarray(image).resize((6, 6), Image.Resampling.BILINEAR) for image in images]
    np.testing.assert_array_equal(loaded.train_images, np.stack([np.asarray(image) for image in expected]))
    splits = {split: (images[::2], [0, 1, 0, 1]) for split in splits}
    write_images(tmp_path, 'undeclared', splits, classes(2), (None, None, 3))
    np.testing.assert_array_equal(data.load(options_of(tmp_path, name='undeclared')).test_images, images[::2])


def test_image100_comes_out_of_imagenet2012(tmp_path):
    names = ['n01440764', 'n01443537', 'n01484850', 'n01491361', 'n01494475', 'n01496331']  # ImageNet's first
    shades = np.arange(30) % 6
    images = [np.full((20 + i, 30, 3), 40 * k, np.uint8) for i, k in enumerate(shades)]
    splits = {'train': (images, shades), 'validation': (images[:12], shades[:12])}
    label = tfds.features.ClassLabel(names=names)
    write_images(tmp_path, 'imagenet2012', splits, label, (None, None, 3), version='5.1.0')
    (tmp_path / 'classes.txt').write_text(f'{names[4]}\n{names[1]}\n')
    options = options_of(tmp_path, name='image100', class_list=str(tmp_path / 'classes.txt'))
    loaded = data.load(options)
    assert (loaded.name, loaded.num_classes) == ('image100', 2)
    assert loaded.train_images.shape == (10, 144, 144, 3)
    assert loaded.test_images.shape == (4, 144, 144, 3)
    np.testing.assert_array_equal(loaded.train_images[:, 0, 0, 0], np.where(loaded.train_labels == 0, 160, 40))
    assert np.bincount(loaded.train_labels).tolist() == [5, 5]
    (tmp_path / 'classes.txt').write_text(f'{names[1]}\n{names[4]}\n')  # another list, in the same cache
    np.testing.assert_array_equal(data.load(options).train_labels, 1 - loaded.train_labels)
    (tmp_path / 'classes.txt').write_text(f'{names[4]}\nn99999999\n')
    with pytest.raises(UserError, match=r'n99999999.*config\.data\.class_list'):
        data.load(options)


def test_other_files_of_the_same_name_are_other_data(tmp_path):
    digests = []
    for seed in (0, 1):
        root = tmp_path / str(seed)
        write_images(root, 'twice', {'train': (pixels(12, (6, 6, 3), seed), np.arange(12) % 3)}, classes(3))
        options = options_of(root, name='twice')
        options.cache_dir = str(tmp_path / 'cache')
        digests.append(data.load(options).checksum)
    assert digests[0] != digests[1]


# --- with maps: pets and COCO, with the features that tensorflow-datasets gives them

PET_FEATURES = {
    'image': tfds.features.Image(encoding_format='jpeg'),
    'label': classes(37),
    'segmentation_mask': tfds.features.Image(shape=(None, None, 1), use_colormap=True),
}
COCO_FEATURES = {
    'image': tfds.features.Image(encoding_format='jpeg'),
    'panoptic_image': tfds.features.Image(encoding_format='png'),
    'panoptic_objects': tfds.features.Sequence({'id': np.int64, 'label': classes(133), 'is_crowd': np.bool_}),
}


def trimap(height, width):
    """A pet, 1, in rows and columns from a quarter to three quarters, within a border, 3, of an eighth; 2 around it."""
    made = np.full((height, width), 2, np.uint8)
    made[height // 8 : 7 * height // 8, width // 8 : 7 * width // 8] = 3
    made[height // 4 : 3 * height // 4, width // 4 : 3 * width // 4] = 1
    return made


def test_pets_come_with_their_trimaps(tmp_path):
    def pet(row, *shape):
        image = encoded(np.full((*shape, 3), 10 * row, np.uint8), 'JPEG')
        return {'image': image, 'label': row, 'segmentation_mask': encoded(trimap(*shape))}

    train, test = [pet(row, 16 + 8 * (row % 2), 24) for row in range(10)], [pet(row, 16, 24) for row in range(20, 23)]
    write(tmp_path, 'oxford_iiit_pet', '4.0.0', {'train': train, 'test': test}, PET_FEATURES)
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
    for task, expected in (('semseg', semseg), ('saliency', np.where(semseg == 2, 255, semseg))):
        for split in loaded.targets[task][:2]:
            np.testing.assert_array_equal(split, np.broadcast_to(expected, split.shape))
    assert data.load(options_of(tmp_path, name='oxford_iiit_pet')).test_images.shape == (3, 128, 128, 3)


# Segments of every byte of an id, of two things of one class, and of stuff: id -> class
PERSON, OTHER, GRASS, LAST = 7, 7 + 256, 5 + 3 * 256 + 9 * 256**2, 2 * 256**2
SEGMENTS = {GRASS: 85, PERSON: 0, LAST: 132, OTHER: 0}


def coco(row, scale, empty=False):
    """8 × 8 times `scale`: two persons side by side, stuff below them, and a column of no segment on the right."""
    ids = np.zeros((8, 8), int)
    if not empty:
        ids[:4, :3], ids[:4, 3:7], ids[4:, :7], ids[7, :2] = PERSON, OTHER, GRASS, LAST
    color = np.stack([ids % 256, ids // 256 % 256, ids // 256**2], axis=-1).astype(np.uint8)
    large = color.repeat(scale, axis=0).repeat(scale, axis=1)
    objects = {} if empty else SEGMENTS
    return {
        'image': encoded(np.full((*large.shape[:2], 3), 20 * row, np.uint8), 'JPEG'),
        'panoptic_image': encoded(large),
        'panoptic_objects': [{'id': number, 'label': k, 'is_crowd': k == 0} for number, k in objects.items()],
    }


def test_coco_comes_with_its_segments(tmp_path):
    train = [*(coco(row, scale=2 + row) for row in range(3)), coco(3, 4, empty=True)]
    splits = {'train': train, 'validation': [coco(5, scale=1), coco(6, scale=3)]}
    write(tmp_path, 'coco/2017_panoptic', '1.1.0', splits, COCO_FEATURES)
    loaded = data.load(options_of(tmp_path, name='coco/2017_panoptic', image_size=8))
    assert (loaded.name, loaded.num_classes) == ('coco/2017_panoptic', 133)
    assert loaded.train_images.shape == (4, 8, 8, 3)
    outputs = {task: targets.outputs for task, targets in loaded.targets.items()}
    assert outputs == {'semseg': 133, 'stuff': 54, 'edges': 1}
    assert loaded.train_images[:, 0, 0, 0].tolist() == pytest.approx([0, 20, 40, 60], abs=1)
    assert loaded.train_labels.tolist() == [0, 0, 0, -1]  # 28 pixels of persons, 26 of grass, 2 of the last class
    assert loaded.test_labels.tolist() == [0, 0]
    semseg, stuff = np.full((2, 8, 8), 255)
    semseg[:4, :7], semseg[4:, :7], semseg[7, :2] = 0, 85, 132
    stuff[:4, :7], stuff[4:, :7], stuff[7, :2] = 0, 85 - 79, 132 - 79
    edges = np.zeros((8, 8), int)
    edges[:4, 2] = 1  # between the two persons
    edges[3, :6] = 1  # between persons and grass
    edges[6, :2], edges[7, 1] = 1, 1  # around the last
    edges[:, 6:] = 255  # next to pixels of no segment, and these
    assert loaded.test_sizes.tolist() == [[8, 8], [24, 24]]  # maps for testing are as large as the image was
    for task, expected in (('semseg', semseg), ('stuff', stuff), ('edges', edges)):
        train, test, _ = loaded.targets[task]
        for target in train[:3]:
            np.testing.assert_array_equal(target, expected, task)
        assert (train[3] == 255).all()
        assert test.shape == (2, 640, 640)
        np.testing.assert_array_equal(test[0, :8, :8], expected, task)
        if task != 'edges':  # which remain a pixel wide
            np.testing.assert_array_equal(test[1, :24, :24], expected.repeat(3, 0).repeat(3, 1), task)
        assert (test[0, 8:] == 255).all()
        assert (test[0, :, 8:] == 255).all()
    assert 0 < np.sum(loaded.targets['edges'].test[1] == 1) < 3 * 1.5 * np.sum(edges == 1)


# --- absent or unsuitable


def test_a_set_that_is_not_prepared_is_named_with_its_directory(tmp_path, monkeypatch):
    """data_dir, then $TFDS_DATA_DIR."""
    monkeypatch.setattr(tfds_source.importlib.util, 'find_spec', lambda name: None)
    monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path / 'environment'))
    options = options_of(tmp_path, name='stl10')
    for directory in ('tfds', 'environment'):
        with pytest.raises(UserError, match=f"'stl10'.*{tmp_path / directory / 'stl10'}.*config.data.data_dir"):
            data.load(options)
        options.data_dir = ''


def test_with_tensorflow_a_set_is_prepared(tmp_path, monkeypatch):
    """Off the accelerators. Preparing itself is TFDS's; here it is replaced by writing the files, or fails."""
    images, asked = pixels(12, (28, 28, 1)), []
    splits = {'train': (images, np.arange(12) % 10), 'test': (images[:4], np.arange(4))}

    def prepare(builder, file_format):
        asked.append((builder.name, file_format))
        if len(asked) < 3:
            raise AssertionError('Manual directory is empty.\nDownload it.')
        write_images(tmp_path, 'mnist', splits, classes(10), version=str(builder.version))

    monkeypatch.setattr(tfds_source.importlib.util, 'find_spec', lambda name: name == 'tensorflow')
    monkeypatch.setattr(tfds_source, '_hide_accelerators', lambda: asked.append('hidden'))
    monkeypatch.setattr(tfds.core.DatasetBuilder, 'download_and_prepare', prepare)
    with pytest.raises(UserError, match=r'Manual directory is empty\.$'):
        data.load(options_of(tmp_path, name='mnist'))
    loaded = data.load(options_of(tmp_path, name='mnist'))
    assert asked == ['hidden', ('mnist', 'array_record')] * 2
    np.testing.assert_array_equal(loaded.train_images, images)


@pytest.mark.parametrize(
    ('name', 'named'),
    [
        ('cifra10', "'cifra10'.*'cifar10'"),
        ('', r"config\.data\.name=''"),
        ('../x', r"config\.data\.name='\.\./x'"),
        ('emnist/leters', r"'emnist/leters'.*config\.data\.name"),
        ('mnist:9.9.9', r'9\.9\.9.*config\.data\.name'),
    ],
)
def test_unknown_names_are_named(tmp_path, name, named, capfd):
    with pytest.raises(UserError, match=named):
        data.load(options_of(tmp_path, name=name))
    assert capfd.readouterr().out == ''


def cut(directory):
    file = next(directory.glob('*-train*00001-of*'))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def as_tfrecord(directory):
    info = directory / 'dataset_info.json'
    info.write_text(info.read_text().replace('"fileFormat": "array_record"', '"fileFormat": "tfrecord"'))


@pytest.mark.parametrize(
    ('split', 'label', 'spoil', 'message'),
    [
        ('train', classes(4), cut, 'cannot be read'),
        ('train', classes(4), as_tfrecord, 'array_record'),
        ('train', tfds.features.Scalar(np.int64), None, 'image-classification'),
        ('test', classes(4), None, "'train'"),
    ],
)
def test_files_that_cannot_be_used_are_refused(tmp_path, split, label, spoil, message):
    write_images(tmp_path, 'other', {split: (pixels(40, (16, 16, 3)), np.arange(40) % 4)}, label)
    if spoil:
        spoil(tmp_path / 'tfds/other/1.0.0')
    with pytest.raises(UserError, match=message):
        data.load(options_of(tmp_path, name='other'))
