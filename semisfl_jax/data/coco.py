"""COCO 2017 from a folder as people have it: instances, panoptic segmentation, people's joints, and stuff.

    train2017/*.jpg, val2017/*.jpg
    annotations/instances_{train,val}2017.json         80 categories of things
    annotations/panoptic_{train,val}2017.json          and 53 of stuff; panoptic_{train,val}2017/*.png are beside it
    annotations/person_keypoints_{train,val}2017.json  17 joints
    annotations/stuff_{train,val}2017.json             91 categories of stuff, and one for all things

Instances are needed; any other task may be absent. Categories are numbered without gaps, in the order of their ids.
Crowds are void: neither they nor objects without pixels are learned. Scores treat them as COCO's own code does.

Lin et al., Microsoft COCO, 2014; Caesar et al., COCO-Stuff, 2018; Kirillov et al., Panoptic Segmentation, 2019.
"""

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from ml_collections import ConfigDict

from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError, first_line, install
from semisfl_jax.data import maps, objects
from semisfl_jax.data.catalog import KNOWN, Known
from semisfl_jax.data.decode import MapShape, Source, Stream, decode
from semisfl_jax.tasks import IGNORED, truth

NAME = 'coco'
VERSION = 1  # increase it when the same files give other bytes, to renew caches
SPLITS = ('train2017', 'val2017')
FILES = {'instances': 'instances', 'panoptic': 'panoptic', 'persons': 'person_keypoints', 'stuff': 'stuff'}
THINGS = KNOWN[NAME].outputs['instances']
KINDS = KNOWN[NAME].outputs['panoptic'] - THINGS  # of stuff in panoptic segmentation
JOINTS = KNOWN[NAME].outputs['persons']
OTHER = 'other'  # name of the category of stuff that stands for things
MOST_SEGMENTS = 255  # in a test picture, so that a byte can number them
SLACK = 1.0  # pixels by which a box may leave the picture, which rounding explains

Annotation: TypeAlias = dict[str, Any]  # as in the file, but with polygons as arrays and the number of its category


class Picture(NamedTuple):
    """A picture and what is known of it."""

    path: Path
    shape: MapShape  # height and width
    png: Path  # of its panoptic segments
    annotations: dict[str, list[Annotation]]  # by task
    texts: dict[str, np.ndarray]  # of test pictures: the truth, [L] uint8, by 'TASK.truth'


def find(options: ConfigDict) -> Source:
    """Finds COCO in `image_folder`.

    The label of an image is the class of its largest object, -1 if it has none. `image_size` is the side, 0 for 256.

    Raises:
      UserError: the files of instances or of one of `options.tasks` are missing.
    """
    if not options.image_folder:
        raise UserError(
            f"data set '{NAME}' needs --config.data.image_folder, a folder with train2017/, val2017/ and "
            'annotations/instances_train2017.json, or --config.data.fake=True for synthetic images'
        )
    folder = file_io.expand_home(options.image_folder, 'config.data.image_folder')
    known, size = KNOWN[NAME], options.image_size or KNOWN[NAME].image[0]
    paths = {task: [_json(folder, task, split) for split in SPLITS] for task in FILES}
    for task in ('instances', *options.tasks):
        for path in paths.get(task, ()):
            if not path.is_file():
                raise UserError(f"'{path}' is missing, the truth of task '{task}': complete config.data.image_folder")
    outputs = {task: n for task, n in known.outputs.items() if all(path.is_file() for path in paths[task])}
    known = known._replace(outputs=outputs, objects={task: n for task, n in known.objects.items() if task in outputs})
    folders = [folder / split for split in SPLITS]
    folders += [_json(folder, 'panoptic', split).with_suffix('') for split in SPLITS if 'panoptic' in outputs]
    files = [path for task in outputs for path in paths[task]] + [path for each in folders for path in _listed(each)]
    digest = hashlib.sha256(repr((VERSION, size, known)).encode())
    for path in files:
        digest.update(f'|{path.relative_to(folder)} {path.stat().st_size}|'.encode())

    def open_streams() -> tuple[Stream, Stream]:
        train, test = (_pictures(folder, split, known, {*files}) for split in SPLITS)
        return _stream(train, size, known), _stream(_with_truth(test, known), size, known, known.original)

    key = f'{NAME}-{size}px-{digest.hexdigest()[:12]}'
    origin = f'{folder.absolute()} {size}'
    return Source(NAME, key, known.classes, open_streams, outputs, files=tuple(files), origin=origin)


def _json(folder: Path, task: str, split: str) -> Path:
    return folder / 'annotations' / f'{FILES[task]}_{split}.json'


def _listed(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"there is no folder '{folder}': complete config.data.image_folder")
    return sorted(Path(entry.path) for entry in os.scandir(folder) if entry.is_file())


# --- annotations


@contextlib.contextmanager
def _at(path: Path, what: str, number: Any) -> Iterator[None]:
    """Names the file and the id of what is wrong."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f'it has no {error}' if isinstance(error, KeyError) else first_line(error)
        raise UserError(f"'{path}', {what} {number}: {reason}; correct it, or copy the file again") from error


def _pictures(folder: Path, split: str, known: Known, files: set[Path]) -> list[Picture]:
    """Reads the annotations of a split, in the order of the ids of pictures.

    Raises:
      UserError: an annotation is wrong, or a picture is missing.
    """
    _masks()  # whether it is installed is told before much is read
    pictures: dict[int, Picture] = {}
    numbers: dict[int, int] = {}
    for task in ('instances', *(task for task in known.outputs if task != 'instances')):
        path = _json(folder, task, split)
        content = _load(path)
        numbers = _numbers(path, task, content['categories'], numbers)
        for image in content['images'] if task == 'instances' else ():
            with _at(path, 'image', image.get('id')):
                picture = folder / split / image['file_name']
                png = _json(folder, 'panoptic', split).with_suffix('') / f'{picture.stem}.png'
                shape = image['height'], image['width']
                if picture not in files:
                    raise ValueError(f"its picture '{picture}' is missing")
                if min(shape) < 1 or max(shape) > max(known.original or shape):
                    raise ValueError(f'it has {shape[0]} x {shape[1]} pixels, at most {known.original} are expected')
                pictures[image['id']] = Picture(picture, shape, png, {each: [] for each in known.outputs}, {})
        for annotation in content['annotations']:
            number = annotation.get('image_id' if task == 'panoptic' else 'id')
            with _at(path, 'the image' if task == 'panoptic' else 'annotation', number):
                if annotation['image_id'] not in pictures:
                    raise ValueError(f'image {annotation["image_id"]} is not one of those of instances')
                picture = pictures[annotation['image_id']]
                if task == 'panoptic' and picture.png not in files:
                    raise ValueError(f"its segments '{picture.png}' are missing")
                of_picture = annotation['segments_info'] if task == 'panoptic' else [annotation]
                picture.annotations[task] += [_checked(task, each, picture.shape, numbers) for each in of_picture]
    if not pictures:
        raise UserError(f"'{_json(folder, 'instances', split)}' lists no images: copy the file again")
    return [pictures[number] for number in sorted(pictures)]


def _load(path: Path) -> dict[str, Any]:
    """Reads a file of annotations, with polygons as arrays, which take a tenth of the memory of lists."""

    def compact(each: dict[str, Any]) -> dict[str, Any]:
        if isinstance(polygons := each.get('segmentation'), list):
            with _at(path, 'annotation', each.get('id')):
                each['segmentation'] = [np.array(polygon, np.float64) for polygon in polygons]
        return each

    try:
        content = json.loads(path.read_bytes(), object_hook=compact)
        if all(isinstance(content[key], list) for key in ('images', 'annotations', 'categories')):
            return content
        reason = 'images, annotations or categories are no lists'
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = first_line(error)
    raise UserError(f"'{path}' cannot be read as COCO's JSON ({reason}): copy the file again")


def _numbers(path: Path, task: str, categories: Iterable[dict[str, Any]], things: dict[int, int]) -> dict[int, int]:
    """Returns the number of each category, by its id; `things` are those of instances."""
    chosen = {
        'instances': lambda each: True,
        'panoptic': lambda each: not each.get('isthing', 1),
        'persons': lambda each: 'keypoints' in each,
        'stuff': lambda each: each.get('name') != OTHER,
    }[task]
    with _at(path, 'its', 'categories'):
        ids = sorted(each['id'] for each in categories if chosen(each))
        most = {'instances': THINGS, 'panoptic': KINDS, 'persons': 1, 'stuff': KNOWN[NAME].outputs['stuff'] - 1}[task]
        if len(ids) > most:
            raise ValueError(f'there are {len(ids)}, at most {most} are expected')
        numbers = {number: index for index, number in enumerate(ids, 1 + THINGS * (task == 'panoptic'))}
        if task == 'stuff':
            numbers |= {each['id']: 0 for each in categories if not chosen(each)}
        return things | numbers if task == 'panoptic' else numbers


def _checked(task: str, annotation: Annotation, shape: MapShape, numbers: dict[int, int]) -> Annotation:
    """Checks an annotation of a picture; raises ValueError or KeyError."""
    if annotation['category_id'] not in numbers:
        raise ValueError(f'category {annotation["category_id"]} is not one of its categories')
    kept = {'id': annotation['id'], 'category_id': numbers[annotation['category_id']]}
    kept['iscrowd'] = int(annotation.get('iscrowd', 0))
    if task == 'panoptic':
        return kept
    kept['segmentation'] = segmentation = annotation['segmentation']
    if isinstance(segmentation, list):
        if any(polygon.ndim != 1 or len(polygon) % 2 for polygon in segmentation):
            raise ValueError('a polygon has half a corner')
        kept['segmentation'] = [polygon for polygon in segmentation if len(polygon) >= 6]  # others have no area
    elif list(segmentation['size']) != list(shape):
        raise ValueError(f'its mask is of {segmentation["size"]} pixels, its picture of {list(shape)}')
    elif isinstance(counts := segmentation['counts'], list) and sum(counts) != shape[0] * shape[1]:
        raise ValueError(f'its mask counts {sum(counts)} pixels, its picture has {shape[0] * shape[1]}')
    if task == 'stuff':
        return kept
    left, top, width, height = kept['bbox'] = [float(value) for value in annotation['bbox']]
    beyond = max(-left, -top, left + width - shape[1], top + height - shape[0])
    if not (beyond <= SLACK and width >= 0 and height >= 0):
        raise ValueError(f'its box {annotation["bbox"]} is outside of its picture of {shape[1]} x {shape[0]} pixels')
    kept['area'] = float(annotation['area'])
    if task == 'persons':
        kept |= {'keypoints': annotation['keypoints'], 'num_keypoints': int(annotation['num_keypoints'])}
        if np.shape(kept['keypoints']) != (3 * JOINTS,):
            raise ValueError(f'it has {len(kept["keypoints"])} numbers of joints, not {3 * JOINTS}')
    return kept


def _masks() -> Any:
    """Returns pycocotools' module of masks."""
    try:
        from pycocotools import mask
    except ImportError as error:
        raise UserError(f"data set '{NAME}' is read with pycocotools, which is missing: {install('coco')}") from error
    return mask


def _code(annotation: Annotation, shape: MapShape) -> dict[str, Any]:
    """Returns the run-length code of an annotation's mask."""
    masks, segmentation = _masks(), annotation['segmentation']
    if isinstance(segmentation, list):
        if not segmentation:
            return masks.encode(np.zeros(shape, np.uint8, order='F'))
        return masks.merge(masks.frPyObjects([polygon.tolist() for polygon in segmentation], *shape))
    return masks.frPyObjects(segmentation, *shape) if isinstance(segmentation['counts'], list) else segmentation


def _mask(annotation: Annotation, picture: Picture) -> np.ndarray:
    """Returns the mask of an annotation, [H, W] bool."""
    with _at(picture.path, 'annotation', annotation['id']):
        code = _code(annotation, picture.shape)
        mask = _masks().decode([code])[:, :, 0]
        if mask.sum() != _masks().area(code):  # pycocotools leaves pixels that no run counts as memory was
            raise ValueError('its mask counts too few pixels')
        return mask > 0


# --- targets


def _with_truth(pictures: list[Picture], known: Known) -> list[Picture]:
    """Adds what scores read."""
    for picture in pictures:
        if (count := len(picture.annotations.get('panoptic', ()))) > MOST_SEGMENTS:
            raise UserError(f"'{picture.png}' has {count} segments; test pictures may have {MOST_SEGMENTS}")

    def true(task: str, annotation: Annotation, picture: Picture) -> Annotation:
        kept = {key: value for key, value in annotation.items() if key not in ('id', 'segmentation')}
        if task == 'instances':
            with _at(picture.path, 'annotation', annotation['id']):
                code = _code(annotation, picture.shape)
                counts = code['counts'].decode() if isinstance(code['counts'], bytes) else code['counts']
                kept['segmentation'] = {'size': list(picture.shape), 'counts': counts}
        return kept

    texts = {
        f'{task}.truth': truth.padded(
            [truth.encode([true(task, each, picture) for each in picture.annotations[task]]) for picture in pictures]
        )
        for task in known.objects
    }
    return [
        picture._replace(texts={key: text[row] for key, text in texts.items()}) for row, picture in enumerate(pictures)
    ]


def _stream(pictures: list[Picture], size: int, known: Known, original: MapShape | None = None) -> Stream:
    parts = objects.shapes(known, size)
    parts |= {key: (text.shape, np.uint8) for key, text in pictures[0].texts.items()}
    if original and 'panoptic' in known.outputs:
        parts['panoptic.segments'] = original, np.uint8
    tasks = tuple(task for task in known.outputs if task not in known.objects)
    read = functools.partial(_read, known=known)
    return maps.stream(len(pictures), size, tasks, lambda start, stop: pictures[start:stop], read, original, parts)


def _read(picture: Picture, size: int, resized: bool, known: Known) -> maps.Example:
    """Decodes a picture to size x size, with targets: maps `resized` too, or as large as the picture."""
    image, shape = maps.picture(picture.path, size)
    if shape != picture.shape:
        raise UserError(
            f"'{picture.path}' has {shape[0]} x {shape[1]} pixels, but its annotations are of {picture.shape[0]} x "
            f'{picture.shape[1]}: copy the data set again'
        )
    targets = {f'instances.{part}': array for part, array in _instances(picture, size, known).items()} | picture.texts
    if 'panoptic' in known.outputs:
        targets |= {f'panoptic.{part}': targets[f'instances.{part}'] for part in ('boxes', 'labels', 'masks')}
        targets |= {f'panoptic.{part}': array for part, array in _segments(picture, size, known).items()}
    if 'persons' in known.outputs:
        targets |= {f'persons.{part}': array for part, array in _persons(picture, size, known).items()}
    if 'stuff' in known.outputs:
        stuff = np.full(shape, IGNORED, np.uint8)
        for each in picture.annotations['stuff']:
            stuff[_mask(each, picture)] = each['category_id']
        targets['stuff'] = maps.nearest(stuff, *((size, size) if resized else shape))
    things = [each for each in picture.annotations['instances'] if not each['iscrowd']]
    label = max(things, key=lambda each: each['area'])['category_id'] - 1 if things else -1
    return maps.Example(image, label, targets, shape)


def _largest(annotations: list[Annotation], most: int) -> list[Annotation]:
    """Returns the largest of several, in their order."""
    ranked = sorted(range(len(annotations)), key=lambda index: -annotations[index]['area'])
    return [annotations[index] for index in sorted(ranked[:most])]


def _instances(picture: Picture, size: int, known: Known) -> dict[str, np.ndarray]:
    """Returns boxes, labels and masks of the objects, those of most pixels if there are too many."""
    most, grid = known.objects['instances']
    end = np.array(picture.shape[::-1] * 2)
    boxes, labels, masks = [], [], []
    for each in _largest([each for each in picture.annotations['instances'] if not each['iscrowd']], most):
        left, top, width, height = each['bbox']
        box = np.clip([left, top, left + width, top + height], 0, end)
        mask = _mask(each, picture)
        if mask.any() and (box[2:] > box[:2]).all():
            boxes.append(box * size / end)
            labels.append(each['category_id'])
            masks.append(objects.on_grid(mask, box, grid))
    return {
        'boxes': objects.padded(boxes, most, (4,), np.float32),
        'labels': objects.padded(labels, most, (), np.uint8),
        'masks': objects.padded(masks, most, (grid, grid // 8), np.uint8),
    }


def _segments(picture: Picture, size: int, known: Known) -> dict[str, np.ndarray]:
    """Returns the classes of pixels and, for test pictures, the number of each pixel's annotation."""
    listed = picture.annotations['panoptic']
    if not listed:  # the file has no segments of this picture
        numbers = np.zeros(picture.shape, np.uint8)
    else:
        color = decode(picture.png, 0, 3).astype(np.int64)
        if color.shape[:2] != picture.shape:
            raise UserError(
                f"'{picture.png}' has {color.shape[:2]} pixels, not {picture.shape}: copy the data set again"
            )
        segments = color @ np.array([1, 256, 256**2])
        ids = np.array([0, *(each['id'] for each in listed)])
        if unknown := set(np.unique(segments).tolist()) - set(ids.tolist()):
            raise UserError(f"'{picture.png}': its segment {min(unknown)} is not in the JSON file: copy both again")
        order = np.argsort(ids)
        numbers = order[np.searchsorted(ids[order], segments)]
    kinds = np.array([each['category_id'] - 1 - THINGS for each in listed])
    crowds = np.array([each['iscrowd'] for each in listed], bool)
    classes = np.append(IGNORED, np.where(crowds, IGNORED, np.where(kinds < 0, KINDS, kinds))).astype(np.uint8)
    parts = {'semantic': maps.nearest(classes[numbers], size, size)}
    if picture.texts and known.original:
        parts['segments'] = np.zeros(known.original, np.uint8)
        parts['segments'][: picture.shape[0], : picture.shape[1]] = numbers
    return parts


def _persons(picture: Picture, size: int, known: Known) -> dict[str, np.ndarray]:
    """Returns the joints of people with labeled ones, the largest people if there are too many."""
    most, _ = known.objects['persons']
    annotated, joints, visible = np.ones(picture.shape, np.uint8), [], []
    people = picture.annotations['persons']
    clear = [each for each in people if not each['iscrowd'] and any(each['keypoints'][2::3])]
    for each in people:
        if each['iscrowd'] or not any(each['keypoints'][2::3]):
            annotated[_mask(each, picture)] = 0
    for each in _largest(clear, most):
        places = np.array(each['keypoints'], np.float64).reshape(JOINTS, 3)
        moved = (places[:, :2] + 0.5) * size / np.array(picture.shape[::-1]) - 0.5
        joints.append(np.where(places[:, 2:] > 0, moved, 0))
        visible.append(places[:, 2])
    return {
        'joints': objects.padded(joints, most, (JOINTS, 2), np.float32),
        'visible': objects.padded(visible, most, (JOINTS,), np.uint8),
        'known': maps.nearest(annotated, size, size),
    }
