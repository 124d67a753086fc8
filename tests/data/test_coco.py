"""COCO from a folder: ten made pictures in its layout, read right, or refused with the file and the id."""

import json

import numpy as np
import pytest
from PIL import Image

from semisfl_jax import data
from semisfl_jax.base.errors import UserError
from semisfl_jax.tasks import truth as truths
from tests.helpers.settings import data_options

pytest.importorskip('pycocotools')

# Ids of pictures, unsorted; each is 24 x 32 or, if its id is even, 40 x 32, and has the level 8 * id
IDS = {'train2017': [9, 4, 7, 1, 30, 2, 5], 'val2017': [8, 3, 6]}
SIDE = 16
THINGS = [{'id': number, 'name': name, 'isthing': 1} for number, name in ((18, 'dog'), (1, 'person'), (44, 'bottle'))]
STUFF = [{'id': number, 'name': name, 'isthing': 0} for number, name in ((184, 'tree'), (92, 'banner'))]
KINDS = [{'id': number, 'name': name} for number, name in ((183, 'other'), (92, 'banner'), (128, 'house'))]
PERSON = {'id': 1, 'name': 'person', 'keypoints': ['nose'] * 17}


def shape_of(number):
    return (40 if number % 2 == 0 else 24, 32)


def inside(number, box):
    """A mask that fills a box (left, top, right, bottom)."""
    mask = np.zeros(shape_of(number), bool)
    mask[box[1] : box[3], box[0] : box[2]] = True
    return mask


def runs(mask):
    """Lengths of runs, zeros first, column by column."""
    flat = np.concatenate([[0], mask.T.ravel(), [2]]).astype(int)
    ends = np.flatnonzero(np.diff(flat))
    lengths = np.diff(np.concatenate([[0], ends])).tolist()
    return {'size': list(mask.shape), 'counts': lengths}


def annotation(number, image, category, box, crowd=0, as_runs=False, **fields):
    left, top, right, bottom = box
    polygon = [left, top, right, top, right, bottom, left, bottom]
    segmentation = runs(inside(image, box)) if crowd or as_runs else [polygon]
    sides = [left, top, right - left, bottom - top]
    made = {'id': number, 'image_id': image, 'category_id': category, 'bbox': sides, 'area': sides[2] * sides[3]}
    return made | {'iscrowd': crowd, 'segmentation': segmentation} | fields


def joints(*labeled):
    """Keypoints of a person, of which some (number, x, y, v) are labeled."""
    values = np.zeros((17, 3), int)
    for number, x, y, v in labeled:
        values[number] = x, y, v
    return {'keypoints': values.ravel().tolist(), 'num_keypoints': len(labeled)}


def contents():
    """The JSON files, by name."""
    objects = {
        'train2017': [
            annotation(31, 4, 18, (4, 6, 20, 18)),
            annotation(12, 4, 1, (16, 20, 32, 40), as_runs=True),
            annotation(13, 4, 1, (0, 24, 8, 40), crowd=1),
            annotation(40, 1, 44, (8, 8, 8, 20), segmentation=[]),  # no pixel
            annotation(41, 1, 44, (10, 10, 26, 22)),
            annotation(50, 30, 1, (0, 0, 8, 20)),
            annotation(51, 30, 1, (8, 4, 24, 40)),
            annotation(42, 1, 44, (8, 8, 9, 20), segmentation=[[8, 8, 9, 20]]),  # none in a polygon of two corners
        ],
        'val2017': [annotation(60, 3, 1, (4, 4, 12, 20)), annotation(61, 3, 44, (16, 0, 32, 24), crowd=1)],
    }
    people = {
        'train2017': [
            objects['train2017'][1] | joints((0, 20, 22, 2), (5, 18, 30, 1)),
            objects['train2017'][2] | joints(),
            objects['train2017'][5] | joints(),
            objects['train2017'][6] | joints((16, 12, 36, 2)),
        ],
        'val2017': [objects['val2017'][0] | joints((0, 8, 6, 2))],
    }
    amorphous = {
        'train2017': [annotation(70, 4, 183, (4, 6, 20, 18), as_runs=True), annotation(71, 4, 128, (0, 0, 32, 6))],
        'val2017': [annotation(72, 3, 92, (0, 0, 4, 24))],
    }
    segments = {
        'train2017': [(4, [(5000, 18, 0), (70000, 1, 0), (7, 1, 1), (300, 184, 0)])],
        'val2017': [(3, [(9, 1, 0), (10, 44, 1), (11, 92, 0)])],
    }
    made = {}
    for split, ids in IDS.items():
        sizes = [dict(zip(('height', 'width'), shape_of(number), strict=True)) for number in ids]
        images = [{'id': n, 'file_name': f'{n:012}.jpg', **size} for n, size in zip(ids, sizes, strict=True)]
        panoptic = [
            {
                'image_id': number,
                'file_name': f'{number:012}.png',
                'segments_info': [dict(zip(('id', 'category_id', 'iscrowd'), row, strict=True)) for row in rows],
            }
            for number, rows in segments[split]
        ]
        for name, annotations, categories in (
            ('instances', objects[split], THINGS),
            ('person_keypoints', people[split], [PERSON]),
            ('stuff', amorphous[split], KINDS),
            ('panoptic', panoptic, THINGS + STUFF),
        ):
            made[f'{name}_{split}'] = {'images': images, 'annotations': annotations, 'categories': categories}
    return made


def segments_of(number):
    """Ids of the pixels of a picture with segments."""
    ids = np.zeros(shape_of(number), int)
    if number == 4:
        ids[:] = 300
        for box, segment in (((4, 6, 20, 18), 5000), ((16, 20, 32, 40), 70000), ((0, 24, 8, 40), 7)):
            ids[inside(4, box)] = segment
        ids[:3] = 0
    if number == 3:
        for box, segment in (((0, 0, 4, 24), 11), ((4, 4, 12, 20), 9), ((16, 0, 32, 24), 10)):
            ids[inside(3, box)] = segment
    return ids


def make(root, made=None):
    """Writes the folder."""
    for split, ids in IDS.items():
        (root / split).mkdir(parents=True)
        for number in ids:
            level = np.full((*shape_of(number), 3), 8 * number, np.uint8)
            Image.fromarray(level).save(root / split / f'{number:012}.jpg', quality=100)
        segments = root / 'annotations' / f'panoptic_{split}'
        segments.mkdir(parents=True)
        number = 4 if split == 'train2017' else 3
        ids = segments_of(number)
        color = np.stack([ids % 256, ids // 256 % 256, ids // 256**2], axis=-1).astype(np.uint8)
        Image.fromarray(color).save(segments / f'{number:012}.png')
    for name, content in (made or contents()).items():
        (root / 'annotations' / f'{name}.json').write_text(json.dumps(content))
    return root


def options_of(root, **changes):
    of_folder = {'image_folder': str(root / 'coco'), 'cache_dir': str(root / 'cache'), 'image_size': SIDE}
    return data_options(**{'name': 'coco', **of_folder, **changes})


@pytest.fixture(scope='module')
def loaded(tmp_path_factory):
    root = tmp_path_factory.mktemp('data')
    make(root / 'coco')
    return data.load(options_of(root))


def test_pictures_come_in_the_order_of_their_ids(loaded):
    assert (loaded.name, loaded.num_classes, loaded.fake) == ('coco', 80, False)
    assert {task: targets.outputs for task, targets in loaded.targets.items()} == {
        'instances': 80, 'panoptic': 133, 'persons': 17, 'stuff': 92
    }  # fmt: skip
    levels = [loaded.train_images[:, 5, 5, 0].tolist(), loaded.test_images[:, 5, 5, 0].tolist()]
    assert levels == [[8 * n for n in sorted(ids)] for ids in IDS.values()]
    # The largest: a bottle (third category), none, a person (the first) beside a smaller dog, none, ...
    assert loaded.train_labels.tolist() == [2, -1, 0, -1, -1, -1, 0]
    assert loaded.test_labels.tolist() == [0, -1, -1]
    assert loaded.test_sizes.tolist() == [[*shape_of(number)] for number in sorted(IDS['val2017'])]
    assert loaded.outline.objects == {'instances': (100, 56), 'panoptic': (100, 56), 'persons': (30, 0)}


def test_instances_are_boxes_and_masks(loaded):
    """No crowds, and no object without pixels."""
    parts = loaded.targets['instances'].train
    assert (parts['labels'] > 0).sum(axis=1).tolist() == [1, 0, 2, 0, 0, 0, 2]
    across, down = SIDE / 32, SIDE / 40
    assert parts['labels'][2, :3].tolist() == [2, 1, 0]
    expected = np.array([[4, 6, 20, 18], [16, 20, 32, 40]]) * [across, down, across, down]
    np.testing.assert_allclose(parts['boxes'][2, :2], expected, rtol=1e-6)
    expected = np.array([10, 10, 26, 22]) * [across, SIDE / 24, across, SIDE / 24]
    np.testing.assert_allclose(parts['boxes'][0, 0], expected, rtol=1e-6)
    assert np.unpackbits(parts['masks'][2, :2]).all(), 'objects fill their boxes'
    assert not parts['boxes'][:, 2:].any()
    for part in ('boxes', 'labels', 'masks'):
        np.testing.assert_array_equal(loaded.targets['panoptic'].train[part], parts[part])


def test_a_mask_that_does_not_fill_its_box(tmp_path):
    """Two runs of one column: rows 4 to 9 and 14 to 19 of a box of rows 4 to 20."""
    made = contents()
    mask = np.zeros(shape_of(9), bool)
    mask[4:10, 6:14] = mask[14:20, 6:14] = True
    made['instances_train2017']['annotations'] = [annotation(1, 9, 18, (6, 4, 14, 20), segmentation=runs(mask))]
    make(tmp_path / 'coco', made)
    parts = data.load(options_of(tmp_path)).targets['instances'].train
    bits = np.unpackbits(parts['masks'][5, 0], axis=-1)
    rows = 4 + (np.arange(56) + 0.5) * 16 / 56
    np.testing.assert_array_equal(bits, ((rows < 10) | (rows >= 14))[:, None] * np.ones(56))


def test_segments_are_classes_of_pixels(loaded):
    """The tree is the second of the two categories of stuff; things are 53; crowds and what has no segment are void."""
    semantic = loaded.targets['panoptic'].train['semantic']
    assert (semantic[[0, 1, 3, 4, 5, 6]] == 255).all(), 'pictures without segments'
    expected = np.full(shape_of(4), 1)
    expected[inside(4, (4, 6, 20, 18)) | inside(4, (16, 20, 32, 40))] = 53
    expected[inside(4, (0, 24, 8, 40))] = 255
    expected[:3] = 255
    rows, columns = (2 * np.arange(16) + 1) * 40 // 32, (2 * np.arange(16) + 1) * 32 // 32
    np.testing.assert_array_equal(semantic[2], expected[rows[:, None], columns])
    test = loaded.targets['panoptic'].test
    ids = segments_of(3)
    numbers = np.select([ids == 9, ids == 10, ids == 11], [1, 2, 3])
    np.testing.assert_array_equal(test['segments'][0, :24, :32], numbers)
    assert not test['segments'][0, 24:].any()
    assert not test['segments'][0, :, 32:].any()
    assert truths.decode(test['truth'][0]) == [
        {'category_id': 1, 'iscrowd': 0}, {'category_id': 3, 'iscrowd': 1}, {'category_id': 81, 'iscrowd': 0}
    ]  # fmt: skip
    assert [truths.decode(text) for text in test['truth'][1:]] == [[], []]


def test_people_have_joints(loaded):
    """Centers of pixels of a picture of 40 x 32, resized to 16: (x + 1/2) / 2 - 1/2 and (y + 1/2) * 2 / 5 - 1/2."""
    parts = loaded.targets['persons'].train
    assert parts['visible'].any(axis=2).sum(axis=1).tolist() == [0, 0, 1, 0, 0, 0, 1]
    assert parts['visible'][2, 0].tolist() == [2, 0, 0, 0, 0, 1, *[0] * 11]
    np.testing.assert_allclose(parts['joints'][2, 0, [0, 5]], [[9.75, 8.5], [8.75, 11.7]], rtol=1e-6)
    np.testing.assert_allclose(parts['joints'][6, 0, 16], [5.75, 14.1], rtol=1e-6)
    assert not parts['joints'][2, 0, 1:5].any()
    for number, row, box in ((4, 2, (0, 24, 8, 40)), (30, 6, (0, 0, 8, 20))):  # a crowd; a person without joints
        rows, columns = (2 * np.arange(16) + 1) * 40 // 32, 2 * np.arange(16) + 1
        np.testing.assert_array_equal(parts['known'][row] == 0, inside(number, box)[rows[:, None], columns])
    assert parts['known'][[0, 1, 3, 4, 5]].all()
    (person,) = truths.decode(loaded.targets['persons'].test['truth'][0])
    assert person['keypoints'][:6] == [8, 6, 2, 0, 0, 0]
    assert (person['area'], person['bbox'], person['num_keypoints']) == (128, [4, 4, 8, 16], 1)


def test_stuff_is_numbered_behind_things(loaded):
    """Category 183, 'other', is 0; 92 and 128 are 1 and 2; what is not annotated is unknown."""
    stuff = loaded.targets['stuff']
    assert (stuff.train[[0, 1, 3, 4, 5, 6]] == 255).all()
    expected = np.full(shape_of(4), 255)
    expected[inside(4, (4, 6, 20, 18))], expected[:6] = 0, 2
    rows, columns = (2 * np.arange(16) + 1) * 40 // 32, 2 * np.arange(16) + 1
    np.testing.assert_array_equal(stuff.train[2], expected[rows[:, None], columns])
    expected = np.full(shape_of(3), 255)
    expected[:, :4] = 1
    np.testing.assert_array_equal(stuff.test[0, :24, :32], expected)
    assert stuff.test.shape == (3, 640, 640)


def test_the_truth_is_what_pycocotools_reads(loaded):
    from pycocotools import mask

    found = truths.decode(loaded.targets['instances'].test['truth'][0])
    assert [(each['category_id'], each['iscrowd'], each['area']) for each in found] == [(1, 0, 128), (3, 1, 384)]
    for each, box in zip(found, ((4, 4, 12, 20), (16, 0, 32, 24)), strict=True):
        np.testing.assert_array_equal(mask.decode([each['segmentation']])[..., 0], inside(3, box))


def test_tasks_without_files_are_left_out_or_missed(tmp_path):
    made = {name: content for name, content in contents().items() if name.startswith(('instances', 'stuff'))}
    make(tmp_path / 'coco', made)
    loaded = data.load(options_of(tmp_path))
    assert list(loaded.targets) == ['instances', 'stuff']
    with pytest.raises(UserError, match=r"person_keypoints_train2017\.json' is missing, the truth of task 'persons'"):
        data.load(options_of(tmp_path, tasks=('instances', 'persons')))
    assert data.load(options_of(tmp_path)).checksum == loaded.checksum


def edit(name, number, **changes):
    """Changes an annotation, which its id or image names."""

    def change(root):
        path = root / 'annotations' / f'{name}.json'
        content = json.loads(path.read_text())
        (found,) = (a for a in content['annotations'] if number == a.get('id', a['image_id']))
        found |= changes
        path.write_text(json.dumps(content))

    return change


def paint(root):
    """Gives a segment an id that no file has."""
    path = root / 'annotations/panoptic_train2017/000000000004.png'
    pixels = np.array(Image.open(path))
    pixels[0, 0] = 1, 2, 0
    Image.fromarray(pixels).save(path)


KEYPOINTS = 'person_keypoints_train2017'


@pytest.mark.parametrize(
    ('spoil', 'named'),
    [
        (lambda root: (root / 'train2017/000000000004.jpg').unlink(), r"instances_train2017.json', image 4: .*4\.jpg"),
        (lambda root: (root / 'val2017/000000000003.jpg').write_bytes(b'GIF'), r'000000000003\.jpg'),
        (lambda root: (root / 'annotations/instances_val2017.json').unlink(), 'instances_val2017.json'),
        (lambda root: (root / 'annotations/stuff_val2017.json').write_text('{"images": ['), 'stuff_val2017.json'),
        (lambda root: (root / 'annotations/panoptic_val2017/000000000003.png').unlink(), r'the image 3: .*3\.png'),
        (paint, r"000000000004\.png': its segment 513 "),
        (edit('instances_train2017', 31, bbox=[20, 6, 16, 12]), 'annotation 31: its box .* 32 x 40'),
        (edit('instances_train2017', 31, bbox=[-3, 6, 16, 12]), 'annotation 31: its box'),
        (edit('instances_train2017', 31, category_id=2), 'annotation 31: category 2'),
        (edit('instances_val2017', 60, image_id=4), 'instances_val2017.json.*annotation 60: image 4'),
        (edit('instances_train2017', 31, segmentation=[[1, 2, 3, 4, 5]]), 'annotation 31: a polygon'),
        (edit('instances_train2017', 31, segmentation=[['a']]), 'annotation 31: .*float'),
        (edit('instances_train2017', 12, segmentation={'size': [3, 3], 'counts': [9]}), 'annotation 12: its mask'),
        (edit('instances_train2017', 12, segmentation={'size': [40, 32], 'counts': [9]}), 'annotation 12: .* 9 pixels'),
        (edit('instances_train2017', 12, segmentation={'size': [40, 32], 'counts': 'ab~~~'}), r'4\.jpg.*annotation 12'),
        (edit('instances_train2017', 31, area=None), 'annotation 31: .*NoneType'),
        (edit(KEYPOINTS, 51, keypoints=[1, 2, 2]), 'annotation 51: it has 3 numbers'),
        (edit('panoptic_train2017', 4, segments_info=[{'id': 7, 'category_id': 5}]), 'the image 4: category 5'),
        (edit('panoptic_train2017', 4, image_id=77), 'the image 77: image 77'),
        (edit('stuff_train2017', 70, image_id=77), 'stuff_train2017.json.*annotation 70: image 77'),
    ],
)
def test_what_is_wrong_is_named_by_file_and_id(tmp_path, spoil, named):
    make(tmp_path / 'coco')
    spoil(tmp_path / 'coco')
    with pytest.raises(UserError, match=named) as error:
        data.load(options_of(tmp_path))
    assert '\n' not in str(error.value)


def test_a_folder_is_needed():
    with pytest.raises(UserError, match=r'--config\.data\.image_folder'):
        data.load(data_options(name='coco'))
