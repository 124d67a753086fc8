"""Scores of tasks of objects at the size of the pictures, on the host: AP by pycocotools, and panoptic quality.

Predictions are dicts of NumPy arrays of all m images, in pixels of the images. The truth has the parts of
`tasks.parts_of`, and those of `data.objects` where the data set has them. Without these, what networks learn from is
the truth, at the size of the images: masks on their grids, and for people the box around their joints.
"""

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar

import numpy as np

from semisfl_jax.base.errors import UserError, install
from semisfl_jax.models.detection.associative import group
from semisfl_jax.models.detection.panoptic import merge
from semisfl_jax.tasks import truth
from semisfl_jax.tasks.keypoint_similarity import SKELETONS
from semisfl_jax.tasks.panoptic_quality import Segment, count, quality

Parts: TypeAlias = Mapping[str, np.ndarray]
Shape: TypeAlias = tuple[int, int]  # height and width
Annotations: TypeAlias = list[dict[str, Any]]  # of a picture, with COCO's keys
INSIDE = 0.5  # probability above which a pixel belongs to an object
CERTAIN = 0.5  # score that an instance needs to be a segment
STUFF_SHARE = 75  # one of so many pixels is the least segment of stuff: Panoptic FPN's 4,096 of 640 x 480
PEOPLE = 8  # that figures tell apart
AP_OVERLAPS = {'': slice(None), '50': 0, '75': 5}  # of pycocotools' ten thresholds from 0.5 to 0.95
Result = TypeVar('Result')


def instances(found: Parts, of_truth: Parts, sizes: np.ndarray | None, side: int, classes: int) -> dict[str, float]:
    """Computes the AP of masks, and of boxes.

    Args:
      found: 'boxes' [m, K, 4], 'scores' [m, K], 'labels' [m, K] from 1 on, 'masks' [m, K, 28, 28] probabilities within
        the boxes, and 'valid' [m, K] bool.
      of_truth: the truth.
      sizes: [m, 2], heights and widths of the pictures; None: as large as the images.
      side: S, of the images.
      classes: number of labels.
    """
    _pycocotools()

    def one(row: int, shape: Shape) -> tuple[Annotations, Annotations]:
        predicted = [
            {
                'category_id': int(found['labels'][row, index]),
                'score': float(found['scores'][row, index]),
                'bbox': _left_top_sides(box),
                **_encoded(mask),
            }
            for index, box, mask in _pasted(found, row, shape, side)
        ]
        return predicted, _objects(of_truth, row, shape)

    shapes = _shapes(of_truth, sizes, side, len(found['scores']))
    predicted, true = zip(*_each(one, shapes), strict=True)
    of_masks = _precision(predicted, true, shapes, classes, 'segm')
    of_boxes = _precision(predicted, true, shapes, classes, 'bbox')
    return {f'mask_ap{name}': value for name, value in of_masks.items()} | {'box_ap': of_boxes['']}


def panoptic(
    found: Parts, of_truth: Parts, sizes: np.ndarray | None, side: int, things: int, stuff: int
) -> dict[str, float]:
    """Computes panoptic quality, and its factors: of segmentation and of recognition.

    Args:
      found: as in `instances`, and 'semantic' [m, S, S] uint8, classes of stuff from 0 on, or `stuff` for any thing.
      of_truth: the truth.
      sizes: as in `instances`.
      side: S.
      things: number of classes of things, 1 .. `things`.
      stuff: number of classes of stuff, which follow.
    """

    def one(row: int, shape: Shape) -> dict[int, np.ndarray]:
        ours, of_ours = _merged(found, row, shape, side, things, stuff)
        theirs, annotations = _segments(of_truth, row, shape, things, stuff)
        of_theirs = [Segment(each['category_id'], bool(each['iscrowd'])) for each in annotations]
        return count(ours, dict(enumerate(map(Segment, of_ours), 1)), theirs, dict(enumerate(of_theirs, 1)))

    counts = _each(one, _shapes(of_truth, sizes, side, len(found['scores'])))
    result = quality(counts, range(1, things + stuff + 1))
    return {'pq': result.pq, 'sq': result.sq, 'rq': result.rq}


def persons(found: Parts, of_truth: Parts, sizes: np.ndarray | None, side: int, joints: int) -> dict[str, float]:
    """Computes the AP of people by object keypoint similarity.

    A joint that a person lacks is predicted at the mean place of those it has.

    Args:
      found: 'peaks' [m, J, K, 4] of `associative.peaks`, x and y in pixels of the images.
      of_truth: the truth.
      sizes: as in `instances`.
      side: S.
      joints: J.
    """
    _pycocotools()
    skeleton = SKELETONS[joints]

    def one(row: int, shape: Shape) -> tuple[Annotations, Annotations]:
        people, scores = group(found['peaks'][row], order=skeleton.order)
        there = people[..., 2:] > 0
        mean = np.sum(people[..., :2] * there, axis=1, keepdims=True) / there.sum(axis=1, keepdims=True)
        places = (np.where(there, people[..., :2], mean) + 0.5) * np.array(shape[::-1]) / side - 0.5
        predicted = [_person(places[index], np.ones(joints), score) for index, score in enumerate(scores.tolist())]
        if 'truth' in of_truth:
            return predicted, truth.decode(of_truth['truth'][row])
        visible = of_truth['visible'][row]
        shown = np.flatnonzero(visible.any(axis=1))
        return predicted, [_person(of_truth['joints'][row, index], visible[index]) for index in shown]

    shapes = _shapes(of_truth, sizes, side, len(found['peaks']))
    predicted, true = zip(*_each(one, shapes), strict=True)
    precision = _precision(predicted, true, shapes, 1, 'keypoints', skeleton.spreads)
    return {f'oks_ap{name}': value for name, value in precision.items()}


def shown(parts: Parts, side: int, things: int = 0, stuff: int = 0) -> np.ndarray:
    """Draws objects as figures show them, at the size of the images.

    Args:
      parts: predictions or targets, as above.
      side: S.
      things: as in `panoptic`; of instances and panoptic segmentation.
      stuff: likewise; 0 of instances.

    Returns:
      [m, S, S] uint8: the class of the segment that a pixel belongs to, 0 for none; or at the joints of people the
      number of their person, from 1 to PEOPLE and again from 1.
    """
    shape, first = (side, side), next(iter(parts.values()))
    drawn = np.zeros((len(first), *shape), np.uint8)
    for row, picture in enumerate(drawn):
        if 'boxes' in parts:
            if 'scores' in parts:
                segments, classes = _merged(parts, row, shape, side, things, stuff)
            else:
                segments, annotations = _segments(parts, row, shape, things, stuff)
                classes = [annotation['category_id'] for annotation in annotations]
            picture[:] = np.array([0, *classes])[segments]
            continue
        if 'peaks' in parts:
            found = parts['peaks'][row]
            people, seen = group(found, order=SKELETONS[len(found)].order)[0], INSIDE  # a joint that is half certain
        else:
            people, seen = np.concatenate([parts['joints'], parts['visible'][..., None]], axis=-1)[row], 0
        for number, person in enumerate(people):
            x, y, _ = np.clip(np.rint(person[person[:, 2] > seen]).astype(int), 0, side - 1).T
            picture[y, x] = 1 + number % PEOPLE
    return drawn


# --- what is predicted, and the truth


def _merged(found: Parts, row: int, shape: Shape, side: int, things: int, stuff: int) -> tuple[np.ndarray, list[int]]:
    """Returns the predicted segments of a picture and their classes, as `merge`."""
    pasted = list(_pasted(found, row, shape, side, CERTAIN))
    kept = [index for index, _, _ in pasted]
    masks = np.array([mask for _, _, mask in pasted]).reshape(-1, *shape)
    amorphous = np.full(shape, -1)
    if stuff:
        rows, columns = ((2 * np.arange(length) + 1) * side // (2 * length) for length in shape)
        semantic = found['semantic'][row][rows[:, None], columns].astype(int)
        amorphous = np.where(semantic < stuff, things + 1 + semantic, -1)
    scores, labels = found['scores'][row, kept], found['labels'][row, kept]
    return merge(masks, scores, labels, amorphous, CERTAIN, area=shape[0] * shape[1] // STUFF_SHARE)


def _shapes(of_truth: Parts, sizes: np.ndarray | None, side: int, images: int) -> list[Shape]:
    """Returns the sizes at which images are scored."""
    if sizes is None or 'truth' not in of_truth:
        return [(side, side)] * images
    return [(height, width) for height, width in sizes.tolist()]


def _each(one: Callable[[int, Shape], Result], shapes: Sequence[Shape]) -> list[Result]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(one, range(len(shapes)), shapes))


def _pasted(
    found: Parts, row: int, shape: Shape, side: int, least: float = 0.0
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yields index, box [4] and mask [H, W] bool of the detections of an image, in pixels of the picture."""
    scale = np.array(shape[::-1] * 2, np.float32) / np.float32(side)
    for index in np.flatnonzero(found['valid'][row] & (found['scores'][row] >= least)).tolist():
        box = found['boxes'][row, index] * scale
        yield index, box, _placed(found['masks'][row, index].astype(np.float32), box, shape)


def _placed(mask: np.ndarray, box: np.ndarray, shape: Shape, center: float = 0.0) -> np.ndarray:
    """Puts a mask over a box into a picture, the inverse of what masks learn from, `roi_align.crop`.

    torchvision's `mask_rcnn.paste` moves borders by up to a pixel, which costs small objects half of their AP.

    Args:
      mask: [S, S], in [0, 1].
      box: [4].
      shape: of the picture.
      center: where a pixel's value is, from its upper left corner: RoIAlign takes it there, grids from 0.5 on.

    Returns:
      [H, W] bool.
    """
    whole, size = np.zeros(shape, bool), len(mask)
    ranges, weights = [], []
    for low, high, length in zip(box[[1, 0]], box[[3, 2]], shape, strict=True):
        pixel = np.arange(max(0, int(np.ceil(low - 0.5))), min(length, int(np.ceil(high - 0.5))))
        at = np.clip((pixel + center - low) * size / (high - low) - 0.5, 0, size - 1)
        ranges.append(slice(pixel[0], pixel[-1] + 1) if len(pixel) else slice(0, 0))
        weights.append(np.maximum(1 - np.abs(at[:, None] - np.arange(size)), 0))
    whole[tuple(ranges)] = weights[0] @ mask @ weights[1].T > INSIDE
    return whole


def _objects(of_truth: Parts, row: int, shape: Shape) -> Annotations:
    """Returns the true objects of a picture."""
    if 'truth' in of_truth:
        annotations = truth.decode(of_truth['truth'][row])
        for number, annotation in enumerate(annotations, 1):
            if 'segmentation' not in annotation:
                annotation |= _encoded(of_truth['segments'][row, : shape[0], : shape[1]] == number)
        return annotations
    return [
        {'category_id': label, 'iscrowd': 0, 'bbox': _left_top_sides(box), **_encoded(mask)}
        for label, box, mask in _learned(of_truth, row, shape)
    ]


def _learned(of_truth: Parts, row: int, shape: Shape) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yields label, box [4] and mask [H, W] bool of the objects that a network learns from."""
    for index in np.flatnonzero(of_truth['labels'][row]):
        box, bits = of_truth['boxes'][row, index], np.unpackbits(of_truth['masks'][row, index], axis=-1)
        yield int(of_truth['labels'][row, index]), box, _placed(bits.astype(np.float32), box, shape, 0.5)


def _segments(of_truth: Parts, row: int, shape: Shape, things: int, stuff: int) -> tuple[np.ndarray, Annotations]:
    """Returns the true segments of a picture: the number of each pixel's annotation [H, W], and these."""
    if 'truth' in of_truth:
        return of_truth['segments'][row, : shape[0], : shape[1]], truth.decode(of_truth['truth'][row])
    semantic = of_truth['semantic'][row] if stuff else np.zeros(shape, np.uint8)
    segments, annotations = np.zeros(shape, np.uint8), []
    for label, _, mask in _learned(of_truth, row, shape):
        annotations.append({'category_id': label, 'iscrowd': 0})
        segments[mask & (semantic == stuff) & (segments == 0)] = len(annotations)
    for kind in np.unique(semantic[semantic < stuff]).tolist():
        annotations.append({'category_id': things + 1 + kind, 'iscrowd': 0})
        segments[semantic == kind] = len(annotations)
    return segments, annotations


def _left_top_sides(box: np.ndarray) -> list[float]:
    """Returns a box [4] as COCO has it."""
    return [*box[:2].tolist(), *(box[2:] - box[:2]).tolist()]


def _encoded(mask: np.ndarray) -> dict[str, Any]:
    from pycocotools import mask as masks

    return {'segmentation': masks.encode(np.asfortranarray(mask, np.uint8)), 'area': float(mask.sum())}


def _person(places: np.ndarray, visible: np.ndarray, score: float | None = None) -> dict[str, Any]:
    """Returns a person with joints at places [J, 2], the box around those that are visible, and its area."""
    low, high = (f(places[visible > 0], axis=0).tolist() for f in (np.min, np.max))
    width, height = high[0] - low[0], high[1] - low[1]
    keypoints = np.column_stack([places, visible]).ravel().tolist()
    counted = {'iscrowd': 0, 'num_keypoints': int((visible > 0).sum())} if score is None else {'score': score}
    return {'category_id': 1, 'keypoints': keypoints, 'bbox': [*low, width, height], 'area': width * height, **counted}


# --- pycocotools


def _pycocotools() -> tuple[Any, Any]:
    """Returns its classes COCO and COCOeval."""
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError as error:
        raise UserError(f'AP of objects is computed by pycocotools, which is missing: {install("coco")}') from error
    return COCO, COCOeval


def _precision(
    predicted: Sequence[Annotations],
    true: Sequence[Annotations],
    shapes: Sequence[Shape],
    classes: int,
    kind: str,
    spreads: Sequence[float] = (),
) -> dict[str, float]:
    """Computes the average precision by AP_OVERLAPS; nan if there is nothing to find.

    Args:
      predicted: of each picture, with scores.
      true: of each picture.
      shapes: of the pictures.
      classes: number of categories.
      kind: what is compared: 'segm', 'bbox' or 'keypoints'.
      spreads: of joints.
    """
    coco, evaluation_of = _pycocotools()
    images = [{'id': row, 'height': height, 'width': width} for row, (height, width) in enumerate(shapes)]

    def indexed(annotations: Sequence[Annotations]) -> Any:
        rows = [{**each, 'image_id': row} for row, of_picture in enumerate(annotations) for each in of_picture]
        made = coco()
        made.dataset = {
            'images': images,
            'categories': [{'id': label} for label in range(1, classes + 1)],
            'annotations': [{'iscrowd': 0, **each, 'id': number} for number, each in enumerate(rows, 1)],
        }
        made.createIndex()
        return made

    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = evaluation_of(indexed(true), indexed(predicted), kind)
        if spreads:
            evaluation.params.kpt_oks_sigmas = np.array(spreads)
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval['precision'][:, :, :, 0, -1]  # [thresholds, recalls, classes]: any area, all detections
    values = {name: precision[at] for name, at in AP_OVERLAPS.items()}
    return {name: float(x[x > -1].mean()) if (x > -1).any() else float('nan') for name, x in values.items()}
