"""The controller of K_s, the number of supervised iterations per round (Section IV-B).

It runs on the host between rounds, in float64. The paper's rule looks at the two mean losses of a round and averages
them over windows of `period` rounds. Each check compares how much the two losses fall from window to window over the
last `horizon` rounds, and lowers K_s if the unlabeled loss falls faster in at least half of the pairs.

- `paper`: I_n = 1 where the decrease of f_u exceeds that of f_s; K_s <- max(floor(K_s / alpha), floor(K_min))
- `code`: decreases are divided by the window's mean learning rate and iterations, I_n = 1 where that of f_u is larger
  by at least 1e-5; K_s <- round(max(K_s / alpha, K_min)), halves to even

with K_min = beta * |D_l| / |D| * K_u. Both raise a K_s that begins below K_min to it, as Eq. 10 says. In the first
`pre_rounds` rounds there is no unlabeled loss: `code` uses 0 for it, as the authors' code does, and `paper` skips every
window with such a round.

The paper's Algorithm 1 checks every round, the authors' code every 100. The default here is 100, because a check per
round drives K_s to K_min within a few rounds (option `check_every`). K_s never drops below 1, since the teacher would
stop moving.

Two more rules come from neither paper nor code:

- `coverage`: as `paper`, with K_min = (1 - m) K_s,0, where K_s,0 is the K_s of the first round and m the share of the
  checked round's pseudo-labels that reach the threshold. K_s may rise again: a model that is unsure of most images
  keeps learning from its labels
- `fixed`: K_s is constant
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from semisfl_jax.base.errors import UserError
from semisfl_jax.base.keys import key

MOST_STEPS = 1_000_000  # per round


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrequencyOptions:
    """Static settings of the controller: the keys of `config.frequency`, and what else it reads."""

    alpha: float = key(1.5, at_least=1, help='by which K_s is divided')
    beta: float = key(8.0, at_least=0, help='K_min = beta * labeled share * K_u')
    period: int = key(10, at_least=1, help='rounds averaged into one observation')
    horizon: int = key(100, at_least=1, help='rounds whose observations are compared at a check')
    check_every: int = key(100, at_least=1, help="rounds between checks; 1: as in the paper's Algorithm 1")
    rule: str  # `config.k_s_rule`
    k_s: int  # in the first round
    k_u: int
    labeled_share: float  # |D_l| / |D|
    pre_rounds: int = 0  # initial rounds without a cross-entity phase


class FrequencyState(NamedTuple):
    """The state of the controller: arrays of fixed shape, so that a checkpoint can hold it.

    Columns: supervised loss, unlabeled loss, learning rate, K_s.
    """

    k_s: np.int64 | np.ndarray  # [] int64
    rounds: np.int64 | np.ndarray  # [] int64, rounds observed
    current: np.ndarray  # [4] float64, sums over the unfinished window
    windows: np.ndarray  # [horizon / period + 1, 4] float64, means of the last windows, oldest first


def check(options: FrequencyOptions) -> None:
    """Raises UserError if K_min is no number of steps that a round could have."""
    k_min = options.beta * options.labeled_share * options.k_u
    if options.rule in ('paper', 'code') and k_min > MOST_STEPS:
        why = f'beta times k_u={options.k_u} times the share of labeled images, {options.labeled_share:.3g}'
        raise UserError(f'config.frequency.beta={options.beta} makes K_min {k_min:.3g}: {why}; use a smaller beta')


def init(options: FrequencyOptions) -> FrequencyState:
    """Returns a controller that has observed no round."""
    windows = options.horizon // options.period + 1
    return FrequencyState(np.int64(options.k_s), np.int64(0), np.zeros(4), np.zeros((windows, 4)))


def update(
    state: FrequencyState, options: FrequencyOptions, loss_s: float, loss_u: float, lr: float, mask_rate: float
) -> FrequencyState:
    """Records a round, which ran with `state.k_s`, and decides K_s for the next.

    Args:
      state: the controller before the round.
      options: its settings.
      loss_s: the mean loss (cross-entropy + contrastive) of the supervised phase.
      loss_u: the mean loss (consistency + clustering) of the cross-entity phase; NaN if there was none.
      lr: the learning rate of the round.
      mask_rate: the share of confident pseudo-labels in the cross-entity phase; NaN if there was none.

    Returns:
      The controller after the round.
    """
    rounds = int(state.rounds) + 1
    if options.rule == 'code' and rounds <= options.pre_rounds:
        loss_u = 0.0
    current = state.current + np.array([loss_s, loss_u, lr, float(state.k_s)])
    windows = state.windows
    if rounds % options.period == 0:
        windows = np.concatenate([windows[1:], current[None] / options.period])
        current = np.zeros(4)
    k_s = int(state.k_s)
    if options.rule != 'fixed' and rounds >= options.horizon and rounds % options.check_every == 0:
        filled = windows[-min(rounds // options.period, len(windows)) :]
        if unlabeled_falls_faster(filled, options) >= 0.5:
            k_s = next_k_s(k_s, options, mask_rate)
    return FrequencyState(np.int64(k_s), np.int64(rounds), current, windows)


def unlabeled_falls_faster(windows: np.ndarray, options: FrequencyOptions) -> float:
    """Computes R, the share of consecutive pairs of windows in which the unlabeled loss decreases faster.

    Args:
      windows: [n, 4]; those that contain a round without an unlabeled loss are skipped.
      options: `rule` and `k_u` are read.

    Returns:
      R, 0 without a pair.
    """
    loss_s, loss_u, lr, k_s = windows[np.isfinite(windows).all(axis=1)].T
    fall_s, fall_u = loss_s[:-1] - loss_s[1:], loss_u[:-1] - loss_u[1:]
    if options.rule != 'code':
        return float(np.mean(fall_u > fall_s)) if len(fall_s) else 0.0
    per_step_s, per_step_u = fall_s / (lr[:-1] * k_s[:-1]), fall_u / (lr[:-1] * options.k_u)
    return float(np.mean(per_step_u - per_step_s >= 1e-5)) if len(fall_s) else 0.0


def next_k_s(k_s: int, options: FrequencyOptions, mask_rate: float) -> int:
    """Divides K_s by alpha, but stays at K_min and 1 or above (Eq. 10).

    Args:
      k_s: the current K_s.
      options: the settings of the controller.
      mask_rate: the share of confident pseudo-labels in the checked round; NaN counts as 0. Only `coverage` reads it.

    Returns:
      The next K_s.
    """
    k_min = options.beta * options.labeled_share * options.k_u
    if options.rule == 'coverage':
        k_min = (1 - np.nan_to_num(mask_rate)) * options.k_s
    unrounded = max(k_s / options.alpha, k_min)
    if options.rule == 'code':
        return max(round(unrounded), 1)
    return max(math.floor(unrounded + 1e-5), 1)  # 8 * 0.145 * 50 is 57.99999999999999, and mask rates are float32
