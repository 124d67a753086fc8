"""The mean of what several seeds or evaluations gave, and its uncertainty."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error of the mean of n values, at least one, in their unit. The error of a single value is NaN.

    As scipy.stats.sem has it; importing that takes longer than a table of runs.
    """
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return float(np.mean(values)), error
