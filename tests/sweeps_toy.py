"""A tiny sweep of two methods, and a launcher that makes its runs up: no model is trained."""

import inspect
import math
import sys
from pathlib import Path

from semisfl_jax.studies import engine, sweeps

ROUNDS, SEEDS, TRIALS = 8, (100, 101), 10
PEAK = {'supervised_only': 0.05, 'semisfl': 0.01}  # the learning rate at which the toy is best
DIVERGES = 0.12  # from this learning rate on
ENTRIES = [sweeps.entry('supervised_only'), sweeps.entry('semisfl')]
CHANGES = {'rounds': ROUNDS, 'eval_every': 1, 'data.eval_split': 'validation', 'data.num_validation': 100}


def accuracy(algorithm, lr, seed, number):
    """What the toy scores after a round, by its learning rate alone."""
    best = 0.9 - 0.1 * abs(math.log10(lr / PEAK[algorithm])) + 0.01 * (seed - 100)
    return best * number / ROUNDS


# Takes the lock of its folder, as a run does, and writes what a finished run leaves. It runs whole if not killed.
LAUNCHER = """
import fcntl, hashlib, json, math, os, sys, time
from pathlib import Path

PEAK, DIVERGES, ROUNDS = {constants}
{accuracy}

words = dict(word.lstrip('-').split('=', 1) for word in sys.argv[1:])
folder = Path(words['workdir'])
seeds = [int(seed) for seed in words['config.seeds'].split(',')]
algorithm = words.get('config.algorithm', 'semisfl')
rounds, lr = int(words['config.rounds']), float(words.get('config.lr', 0.02))
if os.environ.get('TOY_FAILS'):
    print('error: the toy has no memory')
    sys.exit(2)


def write_summary(folder, **more):
    content = dict(rounds=rounds, headline='teacher', device='toy', **more)
    seal = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    (folder / 'summary.json').write_text(json.dumps(content | dict(sha256=seal)))


folder.mkdir(parents=True, exist_ok=True)
with (folder / '.lock').open('w') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    with (folder.parent.parent / 'started').open('a') as started:
        started.write(folder.name + chr(10))
    homes = [folder / f'seed_{{seed}}' for seed in seeds]
    lines = dict.fromkeys(homes, '')
    for number in range(1, rounds + 1):
        time.sleep(float(os.environ.get('TOY_SLEEP', '0')))
        if lr >= DIVERGES and number == 4:
            print('error: loss_supervised is nan in round 4: stopped. There was no checkpoint yet in', folder, end='')
            print('; a lower config.lr may help')
            sys.exit(3)
        for home, seed in zip(homes, seeds):
            home.mkdir(exist_ok=True)
            line = dict(round=number, teacher_accuracy=accuracy(algorithm, lr, seed, number), validation=True)
            lines[home] += json.dumps(line) + chr(10)
            (home / 'metrics.jsonl').write_text(lines[home])
    for home, seed in zip(homes, seeds):
        (home / 'config.json').write_text(json.dumps(dict(seed=seed, algorithm=algorithm, rounds=rounds)))
        checksum = ''
        for line in (home / 'metrics.jsonl').read_bytes().splitlines(keepends=True):
            checksum = hashlib.sha256(checksum.encode() + line).hexdigest()
        write_summary(home, metrics_sha256=checksum)
    write_summary(folder)
"""


def launcher(folder):
    """Writes the made-up launch.py into `folder`."""
    path = Path(folder) / 'launch.py'
    path.write_text(LAUNCHER.format(constants=(PEAK, DIVERGES, ROUNDS), accuracy=inspect.getsource(accuracy)))
    return path


def sweep(entries=ENTRIES, trials=TRIALS, **changes):
    return sweeps.sweep('toy', 'digits', entries, {**CHANGES, **changes}, trials, seeds=SEEDS)


if __name__ == '__main__':
    root, path = sys.argv[1:]
    engine.run(sweep(), {}, root, Path(path))
