"""A tiny sweep of two methods, and a launcher that makes its runs up: no model is trained."""

import math
import sys
from pathlib import Path

import semisfl_jax as sfl
from semisfl_jax.lab.studies import engine, sweeps
from tests.helpers import studies_toy

ROUNDS, SEEDS, TRIALS, BATCH = 8, (100, 101), 10, 2
PEAK = {'supervised_only': 0.05, 'semisfl': 0.01}  # the learning rate at which the toy is best
DIVERGES = 0.12  # from this learning rate on
ENTRIES = [sweeps.entry('supervised_only'), sweeps.entry('semisfl')]
CHANGES = {'rounds': ROUNDS, 'eval_every': 1, 'data.eval_split': 'validation', 'data.num_validation': 100}


def accuracy(words, seed, number):
    """What the toy scores after a round, by its learning rate alone; None: not finite."""
    lr = float(words.get('config.lr', 0.02))
    if lr >= DIVERGES and number == 4:
        return None
    best = 0.9 - 0.1 * abs(math.log10(lr / PEAK[words.get('config.algorithm', 'semisfl')])) + 0.01 * (seed - 100)
    return best * number / ROUNDS


def launcher(folder):
    return studies_toy.write_launcher(folder, accuracy, PEAK=PEAK, DIVERGES=DIVERGES, ROUNDS=ROUNDS)


def sweep(entries=ENTRIES, trials=TRIALS, **changes):
    config = sfl.get_config('digits', {**CHANGES, **changes})
    return sweeps.Sweep('toy', 'toy', 'digits', config, entries, trials, seeds=SEEDS, batch=BATCH)


if __name__ == '__main__':
    root, path = sys.argv[1:]
    engine.run(sweep(), {}, root, Path(path))
