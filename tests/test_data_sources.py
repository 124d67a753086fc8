"""Data sets that need no TFDS, made-up ones, decoding and the cache."""

import dataclasses
import hashlib
import io
import json
import time

import numpy as np
import pytest
from PIL import Image

from configs.default import get_config
from semisfl_jax import data
from semisfl_jax.data import cache, dataset, decode, image100
from semisfl_jax.errors import UserError


def options_of(**changes):
    options = get_config().data
    options.update(changes)
    return options


# --- digits


def test_digits_are_scikit_learns():
    from sklearn.datasets import load_digits

    raw = load_digits()
    digits = data.load(options_of(name='digits'))
    assert digits.train_images.shape == (1437, 8, 8, 1)
    assert digits.test_images.shape == (360, 8, 8, 1)
    assert digits.train_images.dtype == np.uint8
    assert digits.train_labels.dtype == np.int32
    assert (digits.num_classes, digits.fake) == (10, False)
    images = np.concatenate([digits.train_images, digits.test_images])[..., 0]
    labels = np.concatenate([digits.train_labels, digits.test_labels])
    assert images.max() == 255
    # Level v of 0..16 became round(v * 255 / 16); dividing back restores it. Every image is there once.
    restored = np.rint(images / 255 * 16).reshape(-1, 64)
    mine = sorted((*pixels, label) for pixels, label in zip(restored.tolist(), labels.tolist(), strict=True))
    theirs = sorted((*pixels, label) for pixels, label in zip(raw.data.tolist(), raw.target.tolist(), strict=True))
    assert mine == theirs
    share = np.bincount(raw.target) * 360 / 1797
    assert (np.abs(np.bincount(digits.test_labels) - share) < 1).all()
    scaled = digits.train_images / 255
    assert digits.mean == pytest.approx((scaled.mean(),))
    assert digits.std == pytest.approx((scaled.std(),))


def test_digits_are_the_same_every_time_and_resize():
    first, second = (data.load(options_of(name='digits')) for _ in range(2))
    assert first.checksum == second.checksum
    assert len(first.checksum) == 64
    large = data.load(options_of(name='digits', image_size=28))
    assert large.train_images.shape == (1437, 28, 28, 1)
    assert large.checksum != first.checksum
    expected = Image.fromarray(first.train_images[3, ..., 0]).resize((28, 28), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(large.train_images[3, ..., 0], np.asarray(expected))


# --- made-up images


@pytest.mark.parametrize(
    ('name', 'train', 'test', 'image', 'classes'),
    [
        ('digits', 1437, 360, (8, 8, 1), 10),
        ('mnist', 60000, 10000, (28, 28, 1), 10),
        ('fashion_mnist', 60000, 10000, (28, 28, 1), 10),
        ('cifar10', 50000, 10000, (32, 32, 3), 10),
        ('cifar100', 50000, 10000, (32, 32, 3), 100),
        ('svhn', 73257, 26032, (32, 32, 3), 10),
    ],
)
def test_fake_sets_have_the_true_shapes(name, train, test, image, classes):
    fake = data.load(options_of(name=name, fake=True))
    assert fake.fake
    assert fake.train_images.shape == (train, *image)
    assert fake.test_images.shape == (test, *image)
    assert fake.train_images.dtype == fake.test_images.dtype == np.uint8
    assert fake.num_classes == classes
    assert set(fake.train_labels.tolist()) == set(fake.test_labels.tolist()) == set(range(classes))
    assert np.ptp(np.bincount(fake.train_labels)) <= 1
    assert len(fake.mean) == len(fake.std) == image[2]


def test_the_shape_of_a_known_set_with_another_reader_is_that_of_its_images(monkeypatch):
    larger = data.load(options_of(name='digits', image_size=16))
    monkeypatch.setitem(data.READERS, 'digits', lambda image_size: larger)
    assert data.shape(options_of(name='digits')) == ((16, 16, 1), 10)
    assert data.shape(options_of(name='digits', fake=True)) == ((8, 8, 1), 10)  # made up as the package has it


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        (
            {'train_images': np.zeros((6, 8, 8), np.uint8)},
            r'train_images are uint8 \[6, 8, 8\]; use uint8 \[n, H, W, C\]',
        ),
        ({'train_images': np.zeros((6, 8, 8, 1), np.float32)}, r'train_images are float32 \[6, 8, 8, 1\]; use uint8'),
        ({'test_images': np.zeros((0, 8, 8, 1), np.uint8)}, r'test_images are uint8 \[0, 8, 8, 1\]; .* at least 1'),
        ({'test_images': np.zeros((3, 9, 9, 1), np.uint8)}, r'\[8, 8, 1\] and \[9, 9, 1\]; use one size'),
        ({'train_labels': np.zeros(5, np.int32)}, r'train_labels are int32 \[5\] for 6 images'),
        ({'test_labels': np.zeros(3)}, r'test_labels are float64 \[3\] for 3 images; use an array of integers'),
        ({'train_labels': np.arange(6)}, 'train_labels are 0 to 5; use -1 to 2, -1 where a label is unknown'),
        ({'test_labels': np.full(3, -1)}, 'test_labels are -1 to -1; use 0 to 2'),
    ],
)
def test_a_registered_reader_that_returns_something_else_is_refused(monkeypatch, changes, message):
    images, labels = np.zeros((9, 8, 8, 1), np.uint8), np.arange(9) % 3
    arrays = {'train_images': images[:6], 'train_labels': labels[:6]}
    arrays |= {'test_images': images[6:], 'test_labels': labels[6:]}
    made = dataset.make('mine', arrays, num_classes=3)
    monkeypatch.setitem(data.READERS, 'mine', lambda image_size: made)
    assert data.load(options_of(name='mine')) is made
    wrong = dataclasses.replace(made, **changes)
    monkeypatch.setitem(data.READERS, 'mine', lambda image_size: wrong)
    with pytest.raises(UserError, match=message):
        data.load(options_of(name='mine'))


def arrays_with_depth():
    """Of a data set of 6 and 3 images of 3 classes."""
    images, labels = np.zeros((9, 8, 8, 1), np.uint8), np.arange(9) % 3
    arrays = {'train_images': images[:6], 'train_labels': labels[:6]}
    arrays |= {'test_images': images[6:], 'test_labels': labels[6:]}
    return arrays | {'train_target_depth': images[:6, ..., 0], 'test_target_depth': images[6:, ..., 0]}


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        (
            {'train_images': np.zeros((6, 8, 8, 1))},
            r'train_images are float64 \[6, 8, 8, 1\]; use uint8 \[n, H, W, C\]',
        ),
        ({'train_images': [[0]]}, r'train_images are a list; use uint8 \[n, H, W, C\]'),
        ({'train_images': np.zeros((0, 8, 8, 1), np.uint8)}, r'uint8 \[0, 8, 8, 1\]; .* with n of at least 1'),
        ({'test_images': None}, 'test_images are None; use uint8'),
        (
            {'test_labels': [0, 1, 2]},
            'test_labels are a list for 3 images; use an array of integers, one for each image',
        ),
        ({'test_target_depth': np.zeros((3, 8, 9), np.uint8)}, r'depth is uint8 \[3, 8, 9\]; use uint8 \[3, 8, 8\]'),
        ({'test_target_depth': np.zeros((3, 8, 8))}, r'depth is float64 \[3, 8, 8\]; use uint8 \[3, 8, 8\]'),
        (
            'test_images',
            'arrays has no test_images; it has train_images, train_labels, test_labels, train_target_depth',
        ),
        ('train_target_depth', 'arrays has no train_target_depth; it has '),
    ],
)
def test_wrong_arrays_are_one_clear_line_in_the_reader_itself(changes, message):
    arrays = arrays_with_depth()
    assert dataset.make('mine', arrays, num_classes=3, outputs={'depth': 1}).targets['depth'].outputs == 1
    if isinstance(changes, str):
        del arrays[changes]
    with pytest.raises(UserError, match=rf"data set 'mine', of a reader in data\.READERS: .*{message}"):
        dataset.make('mine', arrays | changes if isinstance(changes, dict) else arrays, 3, outputs={'depth': 1})


@pytest.mark.parametrize(('number', 'shown'), [('3', "'3'"), (0, '0'), (3.0, '3.0'), (None, 'None')])
def test_the_number_of_classes_is_one(number, shown):
    with pytest.raises(UserError, match=f'num_classes={shown}; use the number of classes'):
        dataset.make('mine', arrays_with_depth(), number)
    with pytest.raises(UserError, match='arrays is a list; use a dict of train_images, train_labels, test_images, '):
        dataset.make('mine', [], 3)


def test_a_registered_reader_that_returns_nothing_is_refused(monkeypatch):
    monkeypatch.setitem(data.READERS, 'mine', lambda image_size: None)
    with pytest.raises(UserError, match=r"data set 'mine', of a reader in data\.READERS: the reader returns None;"):
        data.load(options_of(name='mine'))


@pytest.mark.parametrize(('name', 'image', 'size'), [('stl10', (96, 96, 3), 700), ('image100', (144, 144, 3), 300)])
def test_large_fake_sets_can_be_small(name, image, size):
    fake = data.load(options_of(name=name, fake=True, fake_size=size))
    assert fake.train_images.shape == (size, *image)
    assert len(fake.test_images) == max(fake.num_classes, size // 5)
    labeled = {'stl10': 350, 'image100': 300}[name]
    assert (fake.train_labels[:labeled] >= 0).all()
    assert (fake.train_labels[labeled:] == -1).all()
    np.testing.assert_array_equal(np.flatnonzero(fake.train_labels >= 0), np.arange(labeled))


def test_fake_images_are_deterministic_and_learnable():
    options = options_of(name='cifar10', fake=True, fake_size=600)
    first, second = data.load(options), data.load(options)
    assert first.checksum == second.checksum
    assert (first.train_images != second.train_images).sum() == 0
    assert len(np.unique(first.train_images.reshape(600, -1), axis=0)) == 600
    means = np.stack([first.train_images[first.train_labels == k].mean(axis=0) for k in range(10)])
    distance = ((first.test_images[:, None] - means) ** 2).sum(axis=(2, 3, 4))
    assert (distance.argmin(axis=1) == first.test_labels).mean() > 0.95


def test_fake_images_follow_the_image_size():
    assert data.load(options_of(name='stl10', fake=True, fake_size=20, image_size=24)).test_images.shape[1:] == (
        24,
        24,
        3,
    )


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'name': 'flowers', 'fake': True}, "no made-up images for data set 'flowers'"),
        ({'name': 'mnist', 'fake': True, 'fake_size': -1}, 'fake_size is -1'),
        ({'name': 'mnist', 'fake_size': 100}, 'fake_size is for made-up images'),
        ({'name': 'digits', 'image_size': -3}, 'image_size is -3'),
        ({'name': 'digits', 'image_folder': '/x'}, "image_folder belongs to data set 'image100' or 'cinic10'"),
        ({'name': 'digits', 'class_list': 'x.txt'}, "class_list belongs to data set 'image100'"),
        ({'name': 'image100'}, 'needs --config.data.class_list'),
    ],
)
def test_wrong_options_are_one_clear_line(changes, message):
    with pytest.raises(UserError, match=message) as caught:
        data.load(options_of(**changes))
    assert '\n' not in str(caught.value)


# --- statistics and checksum


def test_channel_statistics_equal_numpys():
    images = np.random.default_rng(0).integers(0, 256, (5000, 4, 3, 2), dtype=np.uint8)
    images[..., 1] = 7
    mean, std = dataset.channel_statistics(images)
    assert mean == pytest.approx(tuple((images / 255).mean(axis=(0, 1, 2))), abs=1e-12)
    assert std == pytest.approx(((images[..., 0] / 255).std(), 1.0), abs=1e-12)


def test_the_checksum_sees_name_shape_type_and_content():
    image = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    base = {'a': image, 'b': np.zeros(2, np.int32)}
    others = [
        ('x', base | {'a': image[::-1]}),
        ('y', base),
        ('x', base | {'a': image.reshape(2, 4, 3)}),
        ('x', base | {'b': np.zeros(1, np.int64)}),
        ('x', {'c': image, 'b': base['b']}),
    ]
    digests = [dataset.checksum(*pair) for pair in [('x', base), *others]]
    assert len(set(digests)) == 6
    assert digests[0] == dataset.checksum('x', {k: np.array(v) for k, v in reversed(base.items())})
    expected = hashlib.sha256(b'x|a |u1 (2, 3, 4)|' + image.tobytes() + b'|b <i4 (2,)|' + bytes(8)).hexdigest()
    assert digests[0] == expected


# --- decoding


def encoded(pixels, kind='PNG'):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize('channels', [1, 3, 4])
@pytest.mark.parametrize('size', [0, 5])
def test_decoding_restores_png_pixels(channels, size):
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, channels), dtype=np.uint8)
    squeezed = pixels[..., 0] if channels == 1 else pixels
    expected = Image.fromarray(squeezed)
    if size:
        expected = expected.resize((size, size), Image.Resampling.BILINEAR)
    result = decode.decode(encoded(squeezed), size, channels)
    np.testing.assert_array_equal(result, np.asarray(expected).reshape(*result.shape))
    assert result.shape == ((size, size, channels) if size else (9, 7, channels))


def test_gray_images_in_a_color_set_become_color():
    gray = np.arange(20, dtype=np.uint8).reshape(4, 5)
    np.testing.assert_array_equal(decode.decode(encoded(gray), 0, 3), np.repeat(gray[..., None], 3, axis=2))


def test_many_large_images_keep_their_order():
    pixels = np.random.default_rng(0).integers(0, 256, (20, 64, 64, 3), dtype=np.uint8)
    files = [encoded(image) for image in pixels]
    assert len(files[0]) > decode.THREADED_BYTES
    np.testing.assert_array_equal(decode.decode_chunk(files, (64, 64, 3), 0), pixels)


def test_unequal_sizes_and_broken_images_are_user_errors():
    small, large = encoded(np.zeros((4, 4, 3), np.uint8)), encoded(np.zeros((5, 4, 3), np.uint8))
    with pytest.raises(UserError, match=r'unequal size.*--config.data.image_size'):
        decode.decode_chunk([small, large], (4, 4, 3), 0)
    with pytest.raises(UserError, match='cannot be decoded'):
        decode.decode_chunk([small, large[:30]], (4, 4, 3), 0)


# --- the cache


class Counting:
    """A source of random images that counts how often it is decoded."""

    def __init__(self, key='toy-1.0.0-abc'):
        generator = np.random.default_rng(0)
        self.images = generator.integers(0, 256, (40, 6, 5, 3), dtype=np.uint8)
        self.labels = generator.integers(0, 10, 40)
        self.decoded = 0
        self.source = decode.Source('toy', key, 10, self.open)

    def open(self):
        return self.stream(slice(0, 30)), self.stream(slice(30, 40))

    def stream(self, rows):
        images, labels = self.images[rows], self.labels[rows].astype(np.int32)

        def chunks():
            self.decoded += 1
            for start in range(0, len(images), 7):
                yield images[start : start + 7], labels[start : start + 7]

        return decode.Stream(len(images), (6, 5, 3), chunks)

    def check(self, arrays, digest):
        np.testing.assert_array_equal(arrays['train_images'], self.images[:30])
        np.testing.assert_array_equal(arrays['test_images'], self.images[30:])
        np.testing.assert_array_equal(arrays['train_labels'], self.labels[:30])
        np.testing.assert_array_equal(arrays['test_labels'], self.labels[30:])
        assert arrays['train_labels'].dtype == np.int32
        assert digest == dataset.checksum('toy', arrays)


def test_a_cached_set_is_not_decoded_again(tmp_path):
    toy = Counting()
    toy.check(*cache.fetch(toy.source, str(tmp_path / 'deep' / 'cache')))
    toy.check(*cache.fetch(toy.source, str(tmp_path / 'deep' / 'cache')))
    assert toy.decoded == 2  # training and test split, once
    assert [p.name for p in (tmp_path / 'deep' / 'cache').iterdir()] == ['toy-1.0.0-abc']
    other = Counting('toy-1.0.0-def')
    other.check(*cache.fetch(other.source, str(tmp_path / 'deep' / 'cache')))
    assert other.decoded == 2


def damage_byte(entry):
    content = bytearray((entry / 'train_images.npy').read_bytes())
    content[-5] ^= 1
    (entry / 'train_images.npy').write_bytes(content)


DAMAGE = {
    'cut short': lambda entry: (entry / 'test_images.npy').write_bytes((entry / 'test_images.npy').read_bytes()[:-9]),
    'empty': lambda entry: (entry / 'train_labels.npy').write_bytes(b''),
    'missing': lambda entry: (entry / 'train_labels.npy').unlink(),
    'a bit': damage_byte,
    'no meta': lambda entry: (entry / 'meta.json').unlink(),
    'other meta': lambda entry: (entry / 'meta.json').write_text(json.dumps([1])),
    'no json': lambda entry: (entry / 'meta.json').write_text('{'),
}


@pytest.mark.parametrize('how', DAMAGE)
def test_a_damaged_entry_is_rebuilt(tmp_path, how, caplog):
    toy = Counting()
    cache.fetch(toy.source, str(tmp_path))
    DAMAGE[how](tmp_path / 'toy-1.0.0-abc')
    with caplog.at_level('WARNING', logger='semisfl_jax'):
        toy.check(*cache.fetch(toy.source, str(tmp_path)))
    assert toy.decoded == 4
    assert 'damaged' in caplog.text
    toy.check(*cache.fetch(toy.source, str(tmp_path)))
    assert toy.decoded == 4


def test_a_cache_that_cannot_be_written_only_warns(tmp_path, caplog):
    (tmp_path / 'file').write_text('')
    toy = Counting()
    with caplog.at_level('WARNING', logger='semisfl_jax'):
        toy.check(*cache.fetch(toy.source, str(tmp_path / 'file' / 'cache')))
    assert 'not cached' in caplog.text


def test_a_failed_decoding_leaves_nothing_behind(tmp_path):
    toy = Counting()

    def broken():
        yield from [(toy.images[:7], toy.labels[:7])]
        raise UserError('unreadable')

    train, test = toy.open()
    source = toy.source._replace(open=lambda: (train, test._replace(chunks=broken)))
    with pytest.raises(UserError, match='unreadable'):
        cache.fetch(source, str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_remains_of_killed_processes_are_cleared_when_old(tmp_path):
    import os

    for name, age in (('.toy-1.0.0-abc-old', 2 * cache.STALE_SECONDS), ('.toy-1.0.0-abc-new', 60)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    cache.fetch(Counting().source, str(tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ['.toy-1.0.0-abc-new', 'toy-1.0.0-abc']


def test_the_default_cache_follows_xdg(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    toy = Counting()
    cache.fetch(toy.source)
    assert (tmp_path / 'semisfl_jax' / 'toy-1.0.0-abc' / 'meta.json').exists()
    monkeypatch.delenv('XDG_CACHE_HOME')
    monkeypatch.setenv('HOME', str(tmp_path / 'home'))
    assert cache.default_dir() == tmp_path / 'home' / '.cache' / 'semisfl_jax'


# --- an ImageNet folder


@pytest.fixture
def imagenet(tmp_path):
    """train/<id>/* and val/<id>/* for three classes: 3, 4, 5 and 1, 2, 3 JPEGs of different sizes, one color each."""
    for split, extra in (('train', 3), ('val', 1)):
        for k, wnid in enumerate(('n01', 'n02', 'n03')):
            folder = tmp_path / 'imagenet' / split / wnid
            folder.mkdir(parents=True)
            for i in range(k + extra):
                color = np.full((40 + 7 * i, 60 - 5 * k, 3), (50 * k + 20, 10 * i, 100), np.uint8)
                name = f'{wnid}_{i}.JPEG' if i else f'{wnid}_{i}.png'
                (folder / name).write_bytes(encoded(color, 'JPEG' if i else 'PNG'))
            (folder / 'notes.txt').write_text('no image')
    (tmp_path / 'classes.txt').write_text('n03 third\nn01\n\n')
    return tmp_path


def folder_options(root, **changes):
    return options_of(
        name='image100',
        image_folder=str(root / 'imagenet'),
        class_list=str(root / 'classes.txt'),
        cache_dir=str(root / 'cache'),
        **changes,
    )


def test_an_imagenet_folder_gives_the_listed_classes(imagenet):
    loaded = data.load(folder_options(imagenet))
    assert loaded.name == 'image100'
    assert loaded.num_classes == 2
    assert loaded.train_images.shape == (8, 144, 144, 3)
    assert loaded.train_labels.tolist() == [0] * 5 + [1] * 3
    assert loaded.test_labels.tolist() == [0] * 3 + [1]
    assert loaded.mean == (0.485, 0.456, 0.406)
    for images, labels in ((loaded.train_images, loaded.train_labels), (loaded.test_images, loaded.test_labels)):
        red = np.where(labels == 0, 120, 20)[:, None, None]
        assert np.abs(images[..., 0].astype(int) - red).max() <= 3
    np.testing.assert_array_equal(loaded.train_images[0], np.broadcast_to([120, 0, 100], (144, 144, 3)))
    assert loaded.checksum == data.load(folder_options(imagenet)).checksum


def test_a_folder_at_another_size_is_another_cache_entry(imagenet):
    assert data.load(folder_options(imagenet)).train_images.shape[1:] == (144, 144, 3)
    assert data.load(folder_options(imagenet, image_size=32)).train_images.shape[1:] == (32, 32, 3)
    assert len(list((imagenet / 'cache').iterdir())) == 2


def test_one_hundred_classes_need_no_list(tmp_path):
    for split in ('train', 'val'):
        for k in range(100):
            folder = tmp_path / split / f'n{k:03}'
            folder.mkdir(parents=True)
            (folder / 'a.png').write_bytes(encoded(np.full((4, 4, 3), k, np.uint8)))
    source = image100.find(str(tmp_path), '', '', 8)
    train, _ = source.open()
    assert source.num_classes == train.samples == 100
    images, labels = next(train.chunks())
    np.testing.assert_array_equal(labels, np.arange(100))
    np.testing.assert_array_equal(images[:, 0, 0, 0], np.arange(100))


@pytest.mark.parametrize(
    ('spoil', 'message'),
    [
        (lambda root: (root / 'imagenet' / 'val').rename(root / 'imagenet' / 'test'), 'train/ and val/'),
        (lambda root: (root / 'classes.txt').unlink(), 'class_list .* cannot be read'),
        (lambda root: (root / 'classes.txt').write_text('n01\nn01\n'), 'at least two classes'),
        (lambda root: (root / 'classes.txt').write_text('n01\nn77\n'), "class 'n77' has no readable directory"),
        (lambda root: [p.unlink() for p in (root / 'imagenet/val/n01').glob('*.png')], 'holds no images'),
        (lambda root: (root / 'imagenet/train/n01/n01_1.JPEG').write_bytes(b'GIF'), r'n01_1.JPEG.* cannot be decoded'),
    ],
)
def test_a_wrong_folder_is_one_clear_line(imagenet, spoil, message):
    spoil(imagenet)
    with pytest.raises(UserError, match=message):
        data.load(folder_options(imagenet))


def test_a_folder_of_another_number_of_classes_needs_a_list(imagenet):
    options = folder_options(imagenet)
    options.class_list = ''
    with pytest.raises(UserError, match='holds 3 classes, not 100'):
        data.load(options)
