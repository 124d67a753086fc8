"""Data in memory: what a run gets of arrays, and of a data set of Hugging Face; what it says of wrong ones."""

import numpy as np
import pytest
from PIL import Image

from semisfl_jax import data
from semisfl_jax.base.errors import UserError
from semisfl_jax.data import dataset

draw = np.random.default_rng(0)
IMAGES, TEST = (draw.integers(0, 256, (n, 8, 9, 3), dtype=np.uint8) for n in (6, 4))
LABELS, TESTED = np.array([1, 0, 2, -1, 1, 0]), np.array([2, 2, 0, 1])


def made(images=IMAGES, labels=LABELS, test=TEST, tested=TESTED, **others):
    return data.from_arrays(images, labels, test, tested, **others)


# --- what a run gets


def test_images_of_uint8_are_the_very_arrays_and_a_memory_map_stays_one(tmp_path):
    file = np.memmap(tmp_path / 'images', np.uint8, 'w+', shape=IMAGES.shape)
    file[:] = IMAGES
    loaded = made(file)
    assert loaded.train_images is file
    assert loaded.test_images is TEST
    gray = made(file[..., 0], test=TEST[..., 0])
    assert gray.train_images.shape == (6, 8, 9, 1)
    assert np.shares_memory(gray.train_images, file)
    assert loaded.checksum == made().checksum


def test_they_are_as_a_reader_would_give_them():
    arrays = {'train_images': IMAGES, 'train_labels': LABELS.astype(np.int32), 'test_images': TEST}
    by_reader = dataset.make('arrays', arrays | {'test_labels': TESTED.astype(np.int32)}, num_classes=3)
    assert made().checksum == by_reader.checksum
    assert (made().num_classes, made().class_names, made().client_ids) == (3, (), None)
    np.testing.assert_allclose(made().mean, (IMAGES / 255).mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(made().std, (IMAGES / 255).std(axis=(0, 1, 2)), rtol=1e-12)


@pytest.mark.parametrize('kind', [np.float16, np.float32, np.float64])
def test_floats_are_rounded_to_levels(kind, monkeypatch):
    """In several blocks; half a level goes to the even one, as np.rint has it."""
    monkeypatch.setattr(dataset, 'ROWS_AT_ONCE', 4)
    assert made(IMAGES.astype(kind) / kind(255)).checksum == made().checksum
    halves = np.resize(np.array([0.5, 1.5, 254.5]) / 255, IMAGES.shape)
    assert made(halves).train_images.ravel()[:3].tolist() == [0, 2, 254]


def test_names_are_numbered_in_their_order_or_the_given_one():
    names, tested = np.array(['ox', 'cat', 'dog', 'ox', 'ox', 'cat']), ['dog', 'cat', 'ox', 'ox']
    by_name = made(labels=names, tested=tested)
    assert by_name.class_names == ('cat', 'dog', 'ox')
    assert by_name.train_labels.tolist() == [2, 0, 1, 2, 2, 0]
    assert by_name.test_labels.tolist() == [1, 0, 2, 2]
    given = made(labels=names.astype(object), tested=tested, classes=['dog', 'ox', 'cat', 'emu'])
    assert (given.class_names, given.num_classes) == (('dog', 'ox', 'cat', 'emu'), 4)
    assert given.train_labels.tolist() == [1, 2, 0, 1, 1, 2]
    numbered = made(classes=['a', 'b', 'c', 'd'])
    assert (numbered.num_classes, numbered.train_labels.tolist()) == (4, LABELS.tolist())


@pytest.mark.parametrize('ids', [['b', 'a', 'c', 'b', 'b', 'a'], [7, -3, 90, 7, 7, -3]])
def test_clients_are_numbered_in_the_order_of_their_ids_and_count_in_the_checksum(ids):
    loaded = made(client_ids=ids)
    assert loaded.client_ids.tolist() == [1, 0, 2, 1, 1, 0]
    assert len({loaded.checksum, made().checksum, made(client_ids=ids[::-1]).checksum}) == 3


# --- what is wrong is said in a line

LESS = IMAGES[:, :, :, :1]


@pytest.mark.parametrize(
    ('wrong', 'message'),
    [
        ({'images': IMAGES / 100}, r'train_images is float64 from 0\.0 to 2\.\d+; use floats in \[0, 1\], or uint8'),
        ({'test': TEST / -255}, r'test_images is float64 from -1'),
        ({'images': np.where(IMAGES > 250, np.nan, 0.5)}, 'train_images is float64 from nan'),
        ({'images': IMAGES.astype(int)}, r'train_images is int64 \[6, 8, 9, 3\]; use uint8'),
        ({'images': IMAGES[:4]}, r'train_labels is int32 \[6\]; use integer \[4\]'),
        ({'images': IMAGES[:0], 'labels': LABELS[:0]}, 'test_labels has class 0, which train_labels lacks'),
        ({'test': TEST[:0], 'tested': TESTED[:0]}, 'test_images .* with n of at least 1'),
        ({'test': TEST[:, :, :, :1]}, r'test_images is uint8 \[4, 8, 9, 1\]; use uint8 \[4, 8, 9, 3\]'),
        ({'images': np.moveaxis(IMAGES, -1, 1)}, r'train_images .*\[6, 3, 8, 9\], channels first; use numpy.moveaxis'),
        ({'labels': LABELS[:, None]}, r'train_labels is int64 \[6, 1\]; use integers or strings \[n\]'),
        ({'labels': LABELS + 0.5}, 'train_labels is float64'),
        ({'labels': ['a', None] * 3}, 'train_labels is object'),
        ({'labels': [0, 2] * 3}, 'has 2 classes with numbers up to 2; number them 0, 1, 2'),
        ({'labels': LABELS - 1, 'tested': [0, 1, 0, 1]}, 'train_labels are -2 to 1; use -1 to 1'),
        ({'tested': [0, 1, 2, 3]}, 'test_labels has class 3, which train_labels lacks'),
        ({'tested': [0, 1, 2, -1]}, 'test_labels are -1 to 2; use 0 to 2'),
        ({'tested': [0, 1, 2, 3], 'classes': 'abcd'}, "test_labels has class 'd'"),
        ({'labels': list('abcabc')}, 'has names, the other numbers'),
        ({'labels': list('abcabc'), 'tested': list('abcd')}, "test_labels has 'd', which is not one of the classes"),
        ({'labels': list('abcabc'), 'tested': list('abca'), 'classes': 'ab'}, "train_labels has 'c'"),
        ({'classes': ['a', 'b']}, 'train_labels are -1 to 2; use -1 to 1'),
        ({'classes': ['a', 'b', 'a']}, 'repeats a name'),
        ({'client_ids': [0, 1]}, r'client_ids is int32 \[2\]; use integer \[6\]'),
        ({'client_ids': [0.5] * 6}, 'client_ids is float64'),
    ],
)
def test_what_is_wrong_is_said_in_a_line(wrong, message):
    with pytest.raises(UserError, match=message) as caught:
        made(**wrong)
    assert '\n' not in str(caught.value)


# --- data sets of Hugging Face


def split(modes, names=('x', 'y'), size=(9, 8)):
    """A split of pictures of these modes, and what they show [n, H, W, 3]."""
    datasets = pytest.importorskip('datasets')
    pictures = [Image.fromarray(image).resize(size).convert(mode) for image, mode in zip(IMAGES, modes, strict=False)]
    labels = datasets.ClassLabel(names=list(names)) if names else datasets.Value('string')
    features = {'picture': datasets.Image(), 'kind': labels, 'writer': datasets.Value('string')}
    columns = {'picture': pictures, 'kind': [names[n % 2] if names else f'k{n % 2}' for n in range(len(modes))]}
    columns['writer'] = [f'w{n % 3}' for n in range(len(modes))]
    made = datasets.Dataset.from_dict(columns, datasets.Features(features))
    return made, np.stack([np.asarray(picture.convert('RGB')) for picture in pictures])


COLUMNS = {'image': 'picture', 'label': 'kind'}


@pytest.mark.parametrize(('modes', 'channels'), [(['L'] * 6, 1), (['L', 'RGB', 'P'] * 2, 3)])
@pytest.mark.parametrize('kind', [None, 'numpy'])
def test_a_data_set_of_hugging_face_is_that_of_its_arrays(modes, channels, kind):
    (train, shown), (test, tested) = split(modes), split(modes[:4])
    splits = {'train': train.with_format(kind), 'test': test.with_format(kind)}
    if kind and channels == 3:  # arrays of unlike modes
        with pytest.raises(UserError, match='differ in size'):
            data.from_hugging_face(splits, **COLUMNS)
        return
    loaded = data.from_hugging_face(splits, **COLUMNS, client='writer')
    np.testing.assert_array_equal(loaded.train_images, shown[..., :channels])
    np.testing.assert_array_equal(loaded.test_images, tested[..., :channels])
    assert (loaded.class_names, loaded.train_labels.tolist()) == (('x', 'y'), [0, 1] * 3)
    assert loaded.client_ids.tolist() == [0, 1, 2] * 2


def test_what_a_data_set_of_hugging_face_lacks_is_said_in_a_line():
    train, _ = split(['L'] * 6, names=())
    both = {'train': train, 'test': train}
    assert data.from_hugging_face(both, **COLUMNS).class_names == ('k0', 'k1')
    larger, _ = split(['L'] * 2, names=(), size=(10, 8))
    for splits, columns, message in (
        (train, {}, 'the data set is a Dataset; give the splits'),
        ({'train': train, 'validation': train}, {}, "'train', 'validation'; give the splits"),
        (both, {'label': 'kinds'}, "no column 'kinds'; use one of .*did you mean 'kind'"),
        (both, {'client': 'hand'}, "split 'train' has no column 'hand'"),
        ({'train': train, 'test': larger}, {}, r'test_images is uint8 \[2, 8, 10, 1\]'),
    ):
        with pytest.raises(UserError, match=message):
            data.from_hugging_face(splits, **COLUMNS | columns)
