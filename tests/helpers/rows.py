"""What a round of a method moves: tests of a method say it in ROWS, which tests/end_to_end/test_matrix.py checks."""

import importlib
from pathlib import Path
from typing import Any, NamedTuple

from semisfl_jax import algorithms

STUDENT = 'student.bottom student.top student.statistics'
TEACHER = 'teacher.bottom teacher.top teacher.statistics'
HEADS = 'student.proj teacher.proj'
NORMED = 'small_cnn with BatchNorm'  # of tests/helpers/narrow.py: the smallest model that has statistics
FOLDER = Path(__file__).parents[1] / 'algorithms'


class Row(NamedTuple):
    """What a round of a method moves. Pieces that are not named stay as they are, to the bit.

    A piece is the parameters of `student.bottom`, …, `teacher.proj`; `student.statistics`, `teacher.statistics`: those
    of BatchNorm where a family has it; `memory`, `clients` or `server` as a whole. In parameters and statistics all
    kernels, scales, means and variances move; of `clients`, rows of the cohort, and no others.
    """

    round: str  # pieces that move in a whole round
    clients: str  # of them, those that move where the server makes no steps of its own (K_s is 0)
    unlabeled: bool = True  # reads images without labels, and so has numbers in core.cross_entity.no_cross_entity
    by_images: bool = False  # whether its paper weights clients by their numbers of images
    family: str = NORMED  # of models
    keys: tuple[tuple[str, Any], ...] = ()  # with their values, of a configuration in which all of it moves


def rows():
    """Returns the row of every method, by its name."""
    modules = (importlib.import_module(f'tests.algorithms.{path.stem}') for path in FOLDER.glob('test_*.py'))
    by_name = {name: row for module in modules for name, row in getattr(module, 'ROWS', {}).items()}
    return {name: by_name[name] for name in algorithms.METHODS}
