"""Delta_m: what a method gains over another one in several tasks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def delta_m(scores: Mapping[str, float], reference: Mapping[str, float], higher: Mapping[str, bool]) -> float:
    """The mean over tasks of the relative gain over the reference, in percent; positive: better.

    Defined by Maninis et al. (Attentive Single-Tasking of Multiple Tasks, CVPR 2019); M-Fed's Table 2 reports it.

    Args:
      scores: by task.
      reference: by task, not 0.
      higher: by task, whether a higher score is the better one.

    Raises:
      ValueError: the three do not have the same tasks.
    """
    if not scores.keys() == reference.keys() == higher.keys():
        raise ValueError(f'tasks differ: {sorted(scores)}, {sorted(reference)}, {sorted(higher)}')
    gains = [(1 if higher[task] else -1) * (scores[task] - reference[task]) / reference[task] for task in scores]
    return 100 * float(np.mean(gains))
