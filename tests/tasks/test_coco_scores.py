"""Scores of objects: pictures by hand, with arithmetic, and pycocotools used as its users do."""

import contextlib
import io
import itertools
import json
import math
import sys

import numpy as np
import pytest

from semisfl_jax.base.errors import UserError
from semisfl_jax.models.detection import roi_align
from semisfl_jax.tasks import coco_scores, truth
from semisfl_jax.tasks.keypoint_similarity import SKELETONS

pytest.importorskip('pycocotools')


def found_of(*rows):
    """Detections of images, each with (label, score, box) and masks that fill the boxes."""
    most = max(map(len, rows))
    found = {
        'boxes': np.zeros((len(rows), most, 4), np.float32),
        'scores': np.zeros((len(rows), most), np.float32),
        'labels': np.ones((len(rows), most), np.int32),
        'masks': np.ones((len(rows), most, 28, 28), np.float16),
        'valid': np.zeros((len(rows), most), bool),
    }
    for row, detections in enumerate(rows):
        for index, (label, score, box) in enumerate(detections):
            found['boxes'][row, index], found['scores'][row, index], found['labels'][row, index] = box, score, label
            found['valid'][row, index] = True
    return found


def painted(*boxes):
    """Numbers of boxes (left, top, right, bottom) from 1 on, in a map as large as the largest picture."""
    segments = np.zeros((40, 48), np.uint8)
    for number, (left, top, right, bottom) in enumerate(boxes, 1):
        segments[top:bottom, left:right] = number
    return segments


def annotations(*objects):
    return truth.encode(
        [
            {'category_id': label, 'iscrowd': crowd, 'area': 1.0, 'bbox': [left, top, right - left, bottom - top]}
            for label, (left, top, right, bottom), crowd in objects
        ]
    )


# Two pictures, of 40 x 48 and 24 x 32; images have a side of 32
BOXES = ((8, 10, 16, 20), (24, 20, 36, 40)), ((4, 4, 12, 12), (16, 0, 32, 24))
SIZES = np.array([[40, 48], [24, 32]], np.int32)
TRUTH = {
    'truth': truth.padded(
        [
            annotations((1, BOXES[0][0], 0), (2, BOXES[0][1], 0)),
            annotations((1, BOXES[1][0], 0), (1, BOXES[1][1], 1)),
        ]
    ),
    'segments': np.stack([painted(*BOXES[0]), painted(*BOXES[1])]),
}


def in_image(box, row):
    height, width = SIZES[row]
    return np.array(box) * 32 / np.array([width, height, width, height])


def test_ap_by_hand():
    """Class 1: right, wrong, right by masks that overlap by 8 / 11, and one that lies in a crowd, which does not count.

    Precision is 1 up to a recall of 1/2, 51 of 101 recalls, and 2/3 from there on where 8 / 11 is enough, at 5 of 10
    thresholds. Class 2 is found at all of them.
    """
    wrong, larger = (30, 2, 40, 12), (4, 4, 12, 15)
    found = found_of(
        [(1, 0.9, in_image(BOXES[0][0], 0)), (1, 0.8, in_image(wrong, 0)), (2, 0.3, in_image(BOXES[0][1], 0))],
        [(1, 0.7, in_image(larger, 1)), (1, 0.85, in_image((18, 2, 30, 20), 1))],
    )
    result = coco_scores.instances(found, TRUTH, SIZES, 32, 2)
    enough, short = (51 + 50 * 2 / 3) / 101, 51 / 101
    assert result == pytest.approx(
        {
            'mask_ap': ((enough + short) / 2 + 1) / 2,
            'mask_ap50': (enough + 1) / 2,
            'mask_ap75': (short + 1) / 2,
            'box_ap': ((enough + short) / 2 + 1) / 2,
        },
        abs=1e-6,
    )
    assert coco_scores.instances(found_of([], []), TRUTH, SIZES, 32, 2)['mask_ap'] == 0
    empty = {'truth': truth.padded([b'[]', b'[]'])}
    assert math.isnan(coco_scores.instances(found, empty, None, 32, 2)['mask_ap']), 'nothing to find'


def test_grids_are_the_truth_where_there_is_no_other():
    """As where training images are scored: sizes of pictures have no meaning then."""
    bits = np.ones((2, 2, 32, 32), np.uint8)
    bits[1, 0, :, 16:] = 0  # the left half
    boxes = np.array([[[4, 4, 12, 12], [16, 8, 32, 24]], [[2, 2, 30, 30], [0, 0, 0, 0]]], np.float32)
    grids = {'boxes': boxes, 'labels': np.array([[1, 2], [2, 0]], np.uint8), 'masks': np.packbits(bits, axis=-1)}
    found = found_of([(1, 0.5, boxes[0, 0]), (2, 0.5, boxes[0, 1])], [(2, 0.5, (2, 2, 16, 30))])
    assert coco_scores.instances(found, grids, SIZES, 32, 2)['mask_ap'] == 1
    whole = found_of([(1, 0.5, boxes[0, 0]), (2, 0.6, boxes[0, 1])], [(2, 0.5, boxes[1, 0])])
    result = coco_scores.instances(whole, grids, SIZES, 32, 2)
    # The second object of class 2 overlaps by 1/2, at one threshold of ten
    assert result['mask_ap'] == pytest.approx((1 + (1 + 9 * 51 / 101) / 10) / 2)
    semantic = np.full((2, 32, 32), 2, np.uint8)
    semantic[1, :, 16:] = 1
    semantic[0, :4], semantic[0, 24:] = 0, 255
    found['semantic'] = np.where(semantic == 255, 0, semantic)
    result = coco_scores.panoptic(found, grids | {'semantic': semantic}, SIZES, 32, 2, 2)
    assert result == {'pq': 1, 'sq': 1, 'rq': 1}


def test_masks_come_back_where_they_were_cropped():
    """What masks learn from, put into the picture, is the mask: so a perfect network has an AP of 1."""
    rng = np.random.default_rng(0)
    coarse = rng.uniform(size=(4, 5, 5)) < 0.5
    masks = np.zeros((4, 48, 64), np.uint8)
    for index, mask in enumerate(coarse):
        masks[index, 7:27, 11 + index : 36 + index] = np.kron(mask, np.ones((4, 5), int))
    boxes = np.array([[11 + index, 7, 36 + index, 27] for index in range(4)], np.float32)
    frames = np.array([[0, 0, 64, 48]] * 4, np.float32)
    cropped = np.asarray(roi_align.crop(masks, frames, np.arange(4), boxes, 28))
    for mask, box, true in zip(cropped, boxes, masks, strict=True):
        np.testing.assert_array_equal(coco_scores._placed(mask, box, (48, 64)), true)
    beyond = coco_scores._placed(np.ones((28, 28), np.float32), np.array([-3, 40, 5, 60], np.float32), (48, 64))
    assert np.argwhere(beyond).min(axis=0).tolist() == [40, 0]
    assert beyond.sum() == 8 * 5
    assert not coco_scores._placed(np.ones((28, 28)), np.array([70.0, 0, 80, 9]), (48, 64)).any()


def test_panoptic_quality_by_hand():
    """One picture of 24 x 32 as an image of 32 x 32: a thing is found with 64 of 80 pixels, another one is missed.

    Stuff 0 is found, and predicted on 16 pixels of the thing, too. Stuff 1 is predicted on fewer pixels than one of 75,
    so that it is dropped and missed.
    """
    segments = np.zeros((1, 40, 48), np.uint8)
    segments[0, :12, :32] = 3
    segments[0, 12:24, :32] = 4
    segments[0, 0:8, 0:10] = 1
    segments[0, 14:20, 20:30] = 2
    objects = ((1, (0, 0, 10, 8), 0), (1, (20, 14, 30, 20), 0), (3, (0, 0, 1, 1), 0), (4, (0, 0, 1, 1), 0))
    of_truth = {'truth': truth.padded([annotations(*objects)]), 'segments': segments}
    semantic = np.full((1, 24, 32), 2, np.uint8)
    semantic[0, :12] = 0
    semantic[0, 12, :9] = 1  # 24 * 32 // 75 = 10
    rows = (2 * np.arange(32) + 1) * 24 // 64
    found = found_of([(1, 0.9, (0, 0, 8, 32 / 3)), (1, 0.4, (20, 19, 30, 26))]) | {'semantic': semantic[:, rows]}
    result = coco_scores.panoptic(found, of_truth, np.array([[24, 32]]), 32, 2, 2)
    of_stuff = (32 * 12 - 80) / (32 * 12 - 64)  # predicted where the thing lies, too
    assert result == pytest.approx({
        'pq': (0.8 / 1.5 + of_stuff + 0) / 3,
        'sq': (0.8 + of_stuff + 0) / 3,
        'rq': (1 / 1.5 + 1 + 0) / 3,
    })  # fmt: skip


def peaks_of(people, count=6):
    """Peaks of people [P, J, 3], x, y and heat, with tags 10 apart."""
    peaks = np.zeros((1, people.shape[1], count, 4), np.float32)
    for index, person in enumerate(people):
        peaks[0, :, index, :3], peaks[0, :, index, 3] = person, 10 * index
    return peaks


def person(keypoints, area, box=(0, 0, 40, 40)):
    seen = sum(v > 0 for _, _, v in keypoints)
    flat = [value for joint in keypoints for value in joint]
    return {'category_id': 1, 'iscrowd': 0, 'area': area, 'bbox': box, 'keypoints': flat, 'num_keypoints': seen}


def test_similarity_of_joints_by_hand():
    """With spreads of 0.1, a distance of d over an area a has exp(-d^2 / (0.08 a)).

    The first person has four labeled joints, of which one is off by 4 pixels: over an area of 200, exp(-1). The second
    is exact; a third without labeled joints, elsewhere, is not to be found. The picture is twice as large as the image.
    """
    first = [(15, 19, 2), (20, 10, 2), (10, 30, 2), (20, 30, 1), (0, 0, 0)]
    second = [(50, 40, 2), (60, 50, 2), (50, 50, 2), (60, 40, 2), (55, 45, 2)]
    texts = [truth.encode([person(first, 200), person(second, 100), person([(0, 0, 0)] * 5, 100, (0, 60, 2, 2))])]
    of_truth, size = {'truth': truth.padded(texts)}, np.array([[64, 64]])
    ours = np.array([first, second], float)
    ours[0, 1, 0] += 4
    ours[0, 4] = 40, 60, 1  # anywhere
    ours[..., :2] = (ours[..., :2] + 0.5) / 2 - 0.5
    ours[..., 2] = [[0.9] * 5, [0.7] * 5]
    peaks = peaks_of(ours)

    def ap(similarity):
        """The less similar one has the higher score: right at the thresholds up to its similarity, else wrong."""
        right = (similarity >= np.linspace(0.5, 0.95, 10)).mean()
        return right + (1 - right) * 51 / 101 / 2

    result = coco_scores.persons({'peaks': peaks}, of_truth, size, 32, 5)
    assert result['oks_ap'] == pytest.approx(ap((3 + math.exp(-1)) / 4))
    assert result['oks_ap50'] == 1
    peaks[0, 0, 0, 2] = 0  # that joint is missing now, and predicted in the middle of the others
    ours[0, 4] = (15 + 0.5) / 2 - 0.5, (10 + 0.5) / 2 - 0.5, 1
    peaks[0, 4, 0, :3] = ours[0, 4]  # the middle is (17.25, 20), off by (2.25, 1)
    assert np.mean([(24, 10), (10, 30), (20, 30), (15, 10)], axis=0).tolist() == [17.25, 20]
    result = coco_scores.persons({'peaks': peaks}, of_truth, size, 32, 5)
    assert result['oks_ap'] == pytest.approx(ap((2 + math.exp(-1) + math.exp(-(2.25**2 + 1) / 16)) / 4))


def test_people_without_a_truth_of_their_own_are_those_that_are_learned():
    joints = np.zeros((1, 3, 5, 2), np.float32)
    joints[0, 0] = [(2, 3), (6, 3), (2, 9), (6, 9), (4, 6)]
    joints[0, 1] = [(20, 20), (28, 20), (20, 30), (28, 30), (24, 25)]
    visible = np.array([[[2, 2, 2, 1, 0], [2] * 5, [0] * 5]], np.uint8)
    peaks = peaks_of(np.concatenate([joints[0, :2], np.ones((2, 5, 1))], axis=-1))
    of_truth = {'joints': joints, 'visible': visible}
    assert coco_scores.persons({'peaks': peaks}, of_truth, np.array([[99, 7]]), 32, 5)['oks_ap'] == 1


@pytest.mark.parametrize('kind', ['segm', 'keypoints'])
def test_as_pycocotools_scores_files(kind, tmp_path):
    """Five pictures of six random boxes, of which one is a crowd and one has no joints, and detections near them."""
    rng = np.random.default_rng(0)
    true, results = [[] for _ in range(5)], [[] for _ in range(5)]
    for row in range(5):
        for number in range(6):
            left, top, width, height = rng.integers((0, 0, 8, 8), (32, 32, 16, 16)).tolist()
            visible = rng.integers(0, 3, 17) * (number > 0)
            joints = np.column_stack([rng.integers((left, top), (left + width, top + height), (17, 2)), visible])
            true[row].append({
                'id': 6 * row + number + 1, 'image_id': row, 'category_id': 1, 'iscrowd': int(number == 5),
                'bbox': [left, top, width, height], 'area': width * height,
                'segmentation': [corners(left, top, width, height)],
                'keypoints': joints.ravel().tolist(), 'num_keypoints': int((visible > 0).sum()),
            })  # fmt: skip
            moved = (*np.clip(np.array([left, top]) + rng.integers(-2, 3, 2), 0, None).tolist(), width, height)
            places = (joints[:, :2] + rng.normal(size=(17, 2))).astype(np.float32)
            results[row].append((float(np.float32(rng.uniform())), moved, places))
    images = [{'id': row, 'width': 48, 'height': 48} for row in range(5)]
    listed = {'images': images, 'annotations': [*itertools.chain(*true)], 'categories': [{'id': 1, 'name': 'person'}]}
    (tmp_path / 'truth.json').write_text(json.dumps(listed))
    expected, of_truth = official(kind, tmp_path / 'truth.json', results)
    if kind == 'segm':
        rows = [[(1, score, (*box[:2], *np.add(box[:2], box[2:]))) for score, box, _ in row] for row in results]
        result = coco_scores.instances(found_of(*rows), of_truth, None, 48, 1)
    else:
        heat = [[np.column_stack([places, [score] * 17]) for score, _, places in row] for row in results]
        peaks = np.concatenate([peaks_of(np.array(row)) for row in heat])
        result = coco_scores.persons({'peaks': peaks}, of_truth, None, 48, 17)
    name = {'segm': 'mask_ap', 'keypoints': 'oks_ap'}[kind]
    assert [result[name], result[f'{name}50'], result[f'{name}75']] == pytest.approx(expected, abs=1e-9)
    assert 0.05 < expected[0] < 0.9


def corners(left, top, width, height):
    return [left, top, left + width, top, left + width, top + height, left, top + height]


def official(kind, path, results):
    """AP, AP50 and AP75 by pycocotools, and the truth with its run-length codes."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        coco, ours = COCO(str(path)), []
        for row, of_row in enumerate(results):
            for score, box, places in of_row:
                one = {'image_id': row, 'category_id': 1, 'score': score}
                if kind == 'segm':
                    one['segmentation'] = coco.annToRLE(one | {'segmentation': [corners(*box)]})
                else:
                    one['keypoints'] = np.column_stack([places, np.ones(17)]).ravel().tolist()
                ours.append(one)
        evaluation = COCOeval(coco, coco.loadRes(ours), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    texts = []
    for row in range(len(results)):
        annotations = [{**each} for each in coco.imgToAnns[row]]
        for each in annotations:
            code = coco.annToRLE(each)
            each['segmentation'] = {'size': code['size'], 'counts': code['counts'].decode()}
            each.pop('ignore', None), each.pop('_ignore', None)
        texts.append(truth.encode(annotations))
    return evaluation.stats[:3].tolist(), {'truth': truth.padded(texts)}


def test_spreads_are_those_of_pycocotools():
    from pycocotools.cocoeval import Params

    np.testing.assert_allclose(SKELETONS[17].spreads, Params('keypoints').kpt_oks_sigmas, rtol=1e-12)
    assert sorted(SKELETONS[17].order) == [*range(17)]


def test_without_pycocotools_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, 'pycocotools.coco', None)
    with pytest.raises(UserError, match=r'pip install .*\[coco\]'):
        coco_scores.instances(found_of([]), TRUTH, None, 32, 2)
