"""Data sets made from what scikit-learn ships: digits, and scenes of them on photographs. No download."""

import functools
import importlib.util
from pathlib import Path

import numpy as np
from PIL import Image

from semisfl_jax.data import cache, dataset, scenes
from semisfl_jax.data.catalog import KNOWN
from semisfl_jax.data.decode import resize
from semisfl_jax.tasks import IGNORED


def read_digits(image_size: int = 0) -> dataset.Dataset:
    """Reads 1,437 training and 360 test images [n, 8, 8, 1], with the same stratified split in every run.

    The levels 0..16 are scaled to 0..255 and rounded. `image_size` is the side to resize to, 0 to keep 8.
    """
    levels, labels = _read_levels()
    images = np.rint(levels * (255 / 16)).astype(np.uint8)
    if image_size:
        images = np.stack([np.asarray(resize(Image.fromarray(image), image_size)) for image in images])
    arrays: dict[str, np.ndarray] = {}
    for split, rows in zip(dataset.SPLITS, dataset.holdout(labels), strict=True):
        arrays |= {f'{split}_images': images[rows][..., None], f'{split}_labels': labels[rows]}
    return dataset.make('digits', arrays, num_classes=10)


def _read_levels() -> tuple[np.ndarray, np.ndarray]:
    """Reads levels [n, 8, 8] float64 in 0..16 and labels [n] int32, without the slow import of scikit-learn."""
    package = importlib.util.find_spec('sklearn').submodule_search_locations[0]  # type: ignore[union-attr,index]
    table = np.loadtxt(Path(package, 'datasets', 'data', 'digits.csv.gz'), delimiter=',')
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int32)


# --- scenes of the digits on scikit-learn's two photographs
#
# 2,000 scenes for training and 400 for testing. The two sets share no digit, by the holdout of data set 'digits', and
# no pixel of a photograph: of its ten columns of 64 pixels, the fourth and the eighth are for testing.

DIGIT_SCENES = 'digit_scenes'
COUNTS = {'train': 2_000, 'test': 400}
CROP = scenes.SIDE  # side of the crop of a photograph that serves as background
COLUMN = 64
TEST_COLUMNS = (3, 7)
CELL = 16  # side of the squares in which the photographs are labeled
# What a square shows: sky, building, water, trees; leaves, petals. '.': a mixture, or something else
STUFF = 'sbwtlp'
SQUARES = (
    """
ssssssssssssssssssssssssssssssssssssssss
ssssssssssssssssssssssssssssssssssssssss
ssssssssssss..ssssssssssssssssssssssssss
ssssssssssssb.ssssssssssssssssssssssssss
sssssssssss.bb.sssssssssssssssssssssssss
sssssssss.bbbbb.ssssssssssssssssssssssss
ssssss..bbbbbbbbb.ssssssssssssssssssssss
ssssssbbbbbbbbbbbbb.ssssssssssssssssssss
ssssss.bbbbbbbbbbbb.ssssssssssssssssssss
.ssssssbbbbbbbbbbbbsssssssssssssssss...s
.ssss..bbbbbbbbbbbb.ssssssssssssssss....
.ssss.bbbbbbbbbbbbbb.sssssssssssssss..t.
tt.ss.bbbbbbbbbbbbbb.ssssssssssssss..ttt
ttt...bbbbbbbbbbbbbb................tt..
tttt..bbbbbbbbbbbbbb................tttt
tttt..bbbbbbbbbbbbbbb.wwwwwwwwwwww..tttt
ttt..bbbbbbbbbbbbbbbbbwwwwwwwwwwww..tttt
....bbbbbbbbbbbbbbbbb.wwwwwwwwwww...tttt
.www.bbbbbbbbbbbbbbbb.wwwwwww....ttttttt
t..w.bbbbbbbbbbbbbbbb.wwww..tttttttttttt
tttt.bbbbbbbbbbbbbbbbb...ttttttttttttttt
tttt..bbbbbbbbbbbbbbbb.ttttttttttttttttt
tttttttt...bbbbbbbbbb.tttttttttttttttttt
ttttttttttttt.bbbbbb.ttttttttttttttttttt
tttttttttttttt.bbbbb.ttttttttttttttttttt
tttttttttttttttt.bbbtttttttttttttttttttt
ttttttttttttttttt.b.tttttttttttttttttttt
""",
    """
llllllllllllllllllllllllllllllllllllllll
llllllllllllllllllllllllllllllllllllllll
llllllllllllllllllllllllllllllllllllllll
llllllllllllllllllllllllllllllllllllllll
llllllllllllllllllllllllllllllllllllllll
llllllllllllllllll....llllllllllllllllll
lllllllllllllll.ppppppp.llllllllllllllll
lllllllllllll.ppppppppppp.llllllllllllll
llllllllllll.pppppppppppppllllllllllllll
lllllllllll.pppppppppppppp.lllllllllllll
lllllllllll.ppppppppppppppplllllllllllll
lllllllllllpppppppppppppppp.llllllllllll
llllllllll.pppppppppppppppp.llllllllllll
llllllllll.pppppppppppppppppllllllllllll
llllllllll.pppppppppppppppppllllllllllll
llllllllll.pppppppppppppppp.llllllllllll
lllllllllllpppppppppppppppp.llllllllllll
lllllllllll.ppppppppppppppplllllllllllll
lllllllllll.pppppppppppppp.lllllllllllll
llllllllllll.pppppppppppp.llllllllllllll
lllllllllllll.ppppppppppplllllllllllllll
llllllllllllll.pppppppp.llllllllllllllll
lllllllllllllll......ll...llllllllllllll
llllllllllllll.......l....llllllllllllll
lllllllllllllll.....pppppp.lllllllll.lll
llllllllllllllllllppppppppp.llllllll...l
llllllllllllllllll.ppppppppp.lllllll...l
""",
)


def make_digit_scenes(image_size: int = 0) -> dataset.Dataset:
    """Paints the scenes, [n, 48, 48, 3], the same in every run; `image_size` is another side to paint at, 0 for 48."""
    side = image_size or scenes.SIDE
    streams = {split: scenes.stream(DIGIT_SCENES, split, ingredients(split), n, side) for split, n in COUNTS.items()}
    arrays = cache.collect(DIGIT_SCENES, streams)
    return dataset.make(DIGIT_SCENES, arrays, num_classes=10, outputs=KNOWN[DIGIT_SCENES].outputs)


def ingredients(split: str) -> scenes.Ingredients:
    """Returns the digits and backgrounds of a split; a background is (photograph, top, left)."""
    from sklearn.datasets import load_sample_images  # slow to import, and only this set needs it

    loaded = read_digits()
    images, labels = getattr(loaded, f'{split}_images'), getattr(loaded, f'{split}_labels')
    photographs = np.stack(load_sample_images().images)
    height, width = photographs.shape[1:3]
    columns = np.isin(np.arange(width) // COLUMN, TEST_COLUMNS) == (split == 'test')
    lefts = [left for left in range(width - CROP + 1) if columns[left : left + CROP].all()]

    def draw_ground(generator: np.random.Generator) -> tuple[int, ...]:
        photograph, top, left = generator.integers(0, [len(photographs), height - CROP + 1, len(lefts)]).tolist()
        return photograph, top, lefts[left]

    def ground(place: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        photograph, top, left = place
        crop = photograph, slice(top, top + CROP), slice(left, left + CROP)
        return photographs[crop], stuff_of_photographs()[crop]

    return scenes.Ingredients(images[..., 0], labels, draw_ground, ground, len(STUFF))


@functools.cache
def stuff_of_photographs() -> np.ndarray:
    """Returns the class of every pixel of the photographs, [2, 432, 640] uint8, constant on each square."""
    grids = [[[STUFF.find(letter) for letter in line] for line in squares.split()] for squares in SQUARES]
    classes = np.array(grids)
    pixels = np.where(classes < 0, IGNORED, classes).astype(np.uint8)
    return pixels.repeat(CELL, axis=1).repeat(CELL, axis=2)
