"""PASCAL-Context from a folder of the layout that multi-task learning code reads: a small synthetic one."""

import numpy as np
import pytest
import scipy.io
from PIL import Image

from semisfl_jax import data
from semisfl_jax.base.errors import UserError
from tests.helpers.settings import data_options

IDS = {'train': ['2008_000002', '2008_000003', '2008_000007', '2010_000001'], 'val': ['2008_000008', '2009_000005']}
SIDE = 12  # a third of the images: whole numbers of pixels


def voc(row):
    """A third of the picture is background, then class 1 + row, then one line ignored, then class 20."""
    classes = np.zeros((36, 36), np.uint8)
    classes[12:24] = 1 + row
    classes[24:27] = 255
    classes[27:] = 20
    return classes


def palette(classes):
    image = Image.fromarray(classes)
    image.putpalette([value for k in range(256) for value in (k, 255 - k, 7 * k % 256)])
    return image


def struct(**fields):
    """A MATLAB struct array [1, n] as a file holds it, of lists of the fields' values."""
    count = len(next(iter(fields.values())))
    array = np.zeros((1, count), [(name, object) for name in fields])
    for name, values in fields.items():
        for row, value in enumerate(values):
            array[0, row][name] = value
    return array


def mask(rows, columns):
    made = np.zeros((36, 36), np.uint8)
    made[slice(*rows), slice(*columns)] = 1
    return made


def anno(kind, names, masks):
    """An image with one cat that has a head, and one or two objects of class `kind` with the parts given."""
    parts = struct(part_name=names, mask=masks) if names else np.zeros((0, 0))
    cat = struct(part_name=['head'], mask=[mask((0, 36), (0, 36))])
    whole = mask((0, 36), (0, 36))
    objects = struct(**{'class': ['cat', 'x'], 'class_ind': [8, kind], 'mask': [whole, whole], 'parts': [cat, parts]})
    return {'imname': 'x', 'objects': objects}


def make(root, size=(36, 36)):
    """Writes the folder. Image number r is plain, of level 40r; the last of 'train' has its classes elsewhere."""
    folders = 'ImageSets/Context JPEGImages semseg/VOC12 semseg/pascal-context human_parts sal_distill'
    for folder in (*folders.split(), 'pascal-context/trainval'):
        (root / folder).mkdir(parents=True)
    for split, ids in IDS.items():
        (root / 'ImageSets/Context' / f'{split}.txt').write_text('\n'.join(ids) + '\n')
    for row, name in enumerate(IDS['train'] + IDS['val']):
        level = np.full((*size, 3), 40 * row, np.uint8)
        Image.fromarray(level).save(root / f'JPEGImages/{name}.jpg', quality=100)
        where = 'pascal-context' if name == '2010_000001' else 'VOC12'
        palette(voc(row)).save(root / f'semseg/{where}/{name}.png')
        saliency = np.zeros((36, 36), np.uint8)
        saliency[:, 6:12], saliency[:, 12:18], saliency[:, 18:] = 127, 128, 255
        Image.fromarray(saliency).save(root / f'sal_distill/{name}.png')
        label_map = np.full((36, 36), 400, np.uint16)  # beyond 8 bits
        label_map[:, 15:] = 144  # equal to 400 in its lowest 8 bits
        label_map[30:, 15:] = 2
        scipy.io.savemat(root / f'pascal-context/trainval/{name}.mat', {'LabelMap': label_map})
        people = {
            '2008_000002': anno(
                15, ['hair', 'neck', 'rfoot'], [mask((0, 9), (0, 9)), mask((6, 12), (0, 9)), mask((30, 36), (33, 36))]
            ),
            '2008_000003': anno(15, ['luarm'], [mask((3, 6), (0, 36))]),
            '2008_000007': anno(15, [], []),
        }.get(name, anno(12, ['luarm'], [mask((3, 6), (0, 36))]))
        scipy.io.savemat(root / f'human_parts/{name}.mat', {'anno': people})
    return root


def options_of(root, **changes):
    of_folder = {'image_folder': str(root / 'PASCAL_MT'), 'cache_dir': str(root / 'cache'), 'image_size': SIDE}
    return data_options(**{'name': 'pascal_context', **of_folder, **changes})


def unpadded(loaded, task):
    """Maps for testing, without their padding."""
    sizes = zip(loaded.targets[task].test, loaded.test_sizes, strict=True)
    return [values[:height, :width] for values, (height, width) in sizes]


@pytest.fixture
def folder(tmp_path):
    make(tmp_path / 'PASCAL_MT')
    return tmp_path


def test_images_and_maps_are_read_in_the_order_of_the_lists(folder):
    loaded = data.load(options_of(folder))
    assert (loaded.name, loaded.num_classes, loaded.fake) == ('pascal_context', 21, False)
    assert {task: targets.outputs for task, targets in loaded.targets.items()} == {
        'semseg': 21,
        'parts': 7,
        'saliency': 1,
        'edges': 1,
    }
    assert loaded.train_images.shape == (4, 12, 12, 3)
    assert loaded.test_images.shape == (2, 12, 12, 3)
    levels = loaded.train_images[:, 0, 0, 0].tolist() + loaded.test_images[:, 0, 0, 0].tolist()
    assert levels == pytest.approx([0, 40, 80, 120, 160, 200], abs=1)
    # Of 36 rows, class 1 + r has 12 and class 20 has 9; of classes alike in number the background does not count.
    assert loaded.train_labels.tolist() == [1, 2, 3, 4]
    assert loaded.test_labels.tolist() == [5, 6]
    for row, semseg in enumerate(loaded.targets['semseg'].train):
        np.testing.assert_array_equal(semseg, np.repeat([0, 1 + row, 255, 20], [4, 4, 1, 3])[:, None] * np.ones(12))
    for row, semseg in enumerate(unpadded(loaded, 'semseg'), 4):
        np.testing.assert_array_equal(semseg, voc(row))
    for saliency in loaded.targets['saliency'].train:
        np.testing.assert_array_equal(saliency, np.ones((12, 1)) * np.repeat([0, 1], [4, 8]))  # above one half
    edges = np.zeros((12, 12), int)  # at this side, columns 0 to 4 are class 400; the others 144, from row 10 on 2
    edges[:, 4] = 1
    edges[9, 5:] = 1
    for found in loaded.targets['edges'].train:
        np.testing.assert_array_equal(found, edges)


def test_maps_for_testing_have_the_size_of_their_image(tmp_path):
    """Images of 18 x 54 pixels, whose maps are of 36 x 36 here and are resized to them, as in the code."""
    make(tmp_path / 'PASCAL_MT', size=(18, 54))
    loaded = data.load(options_of(tmp_path))
    assert loaded.test_sizes.tolist() == [[18, 54], [18, 54]]
    assert loaded.outline.original == (500, 500)
    np.testing.assert_array_equal(loaded.targets['semseg'].test[1, :18, :54], voc(5)[1::2, [0]] * np.ones(54))
    edges = np.zeros((18, 54), int)
    edges[:, 21] = 1  # 15 of 36 columns are 22.5 of 54, and the center of the last is on the border, where 144 begins
    edges[14, 22:] = 1  # 30 of 36 rows are 15 of 18
    for split in loaded.targets['edges'].test:
        np.testing.assert_array_equal(split[:18, :54], edges)
        assert (split[18:] == 255).all()
        assert (split[:, 54:] == 255).all()
    assert loaded.targets['edges'].train.shape == (4, 12, 12)


def test_parts_are_those_of_people(folder):
    parts = data.load(options_of(folder)).targets['parts']
    first, second = np.zeros((2, 12, 12), int)
    first[0:2, 0:3] = 1  # hair: head
    first[2:4, 0:3] = 2  # neck: torso, which is listed later and covers hair
    first[10:12, 11] = 6
    second[1, :] = 3
    np.testing.assert_array_equal(parts.train[0], first)
    np.testing.assert_array_equal(parts.train[1], second)
    assert (parts.train[2] == 255).all()  # a person without parts
    assert (parts.train[3] == 255).all()  # a dog with a part of a person's name
    assert (parts.test == 255).all()
    assert parts.test.shape == (2, 500, 500)


def test_parts_of_a_single_object_and_in_pngs(folder):
    """SciPy unpacks arrays of one element."""
    parts = struct(part_name=['torso'], mask=[mask((0, 36), (0, 3))])
    objects = struct(**{'class': ['person'], 'class_ind': [15], 'mask': [mask((0, 36), (0, 36))], 'parts': [parts]})
    file = folder / 'PASCAL_MT/human_parts/2008_000008.mat'
    scipy.io.savemat(file, {'anno': {'imname': 'x', 'objects': objects}})
    classes = np.repeat(np.arange(6, dtype=np.uint8), 6)[:, None] * np.ones(36, np.uint8)
    (folder / 'PASCAL_MT/human_parts/2009_000005.mat').unlink()
    palette(classes).save(folder / 'PASCAL_MT/human_parts/2009_000005.png')
    single, png = unpadded(data.load(options_of(folder)), 'parts')
    np.testing.assert_array_equal(single, np.ones((36, 1)) * np.repeat([2, 0], [3, 33]))
    np.testing.assert_array_equal(png, classes)


FIRST = '2008_000002'


@pytest.mark.parametrize(
    ('spoil', 'named'),
    [
        (lambda root: (root / 'ImageSets/Context/val.txt').unlink(), 'val.txt'),
        (lambda root: (root / f'JPEGImages/{FIRST}.jpg').unlink(), f'JPEGImages/{FIRST}.jpg'),
        (lambda root: (root / f'sal_distill/{FIRST}.png').write_bytes(b'GIF'), f'sal_distill/{FIRST}.png'),
        (
            lambda root: scipy.io.savemat(root / f'pascal-context/trainval/{FIRST}.mat', {'Labels': np.eye(3)}),
            f'trainval/{FIRST}.mat. .*LabelMap',
        ),
    ],
)
def test_what_an_incomplete_folder_lacks_is_named(folder, spoil, named):
    spoil(folder / 'PASCAL_MT')
    with pytest.raises(UserError, match=named):
        data.load(options_of(folder))
