"""A tiny study, and a launcher that makes its runs up: no model is trained."""

import sys
from pathlib import Path

from configs import digits
from semisfl_jax.studies import engine, spec
from semisfl_jax.studies.spec import Measure, Paper, Study, Table

# Accuracies in % after the last round: (algorithm, alpha of the clients) -> by seed 0, 1, 2
ACCURACY = {
    ('semisfl', 1.0): (90, 92, 94),
    ('fedswitch', 1.0): (88, 91, 90),
    ('semisfl', 0.5): (80, 80, 80),
    ('fedswitch', 0.5): (78, 78, 78),
}
NAMES = {'semisfl': 'SemiSFL', 'fedswitch': 'FedSwitch'}
SEEDS = (0, 1, 2)
ROUNDS = 4

# Takes the lock of its folder, as a run does, goes on where it was, and writes what a finished run leaves.
LAUNCHER = """
import fcntl, hashlib, json, os, sys, time
from pathlib import Path

ACCURACY = {accuracy!r}
words = dict(word.lstrip('-').split('=', 1) for word in sys.argv[1:])
folder = Path(words['workdir'])
seeds = [int(seed) for seed in words.get('config.seeds', words.get('config.seed', '0')).split(',')]
algorithm = words.get('config.algorithm', 'semisfl')
alpha = float(words.get('config.federation.alpha', '0.1'))
rounds = int(words['config.rounds'])
if algorithm in os.environ.get('TOY_FAILS', ''):
    print('error: the toy does not like', algorithm)
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
    for seed in seeds:
        home = folder / f'seed_{{seed}}' if len(seeds) > 1 else folder
        home.mkdir(exist_ok=True)
        final = ACCURACY[algorithm, alpha][seed] / 100
        with (home / 'metrics.jsonl').open('w') as file:
            for number in range(1, rounds + 1):
                time.sleep(float(os.environ.get('TOY_SLEEP', '0')))
                accuracy = final - 0.1 * (rounds - number)
                costs = dict(bytes_up=2**30 * number, bytes_down=2**30 * number, simulated_seconds=60.0 * number)
                line = dict(round=number, k_s=8, mask_rate=0.25, pseudo_label_accuracy=None, teacher_accuracy=accuracy)
                file.write(json.dumps(line | costs) + chr(10))
                file.flush()
        config = dict(seed=seed, algorithm=algorithm, rounds=rounds)
        (home / 'config.json').write_text(json.dumps(config))
        checksum = ''
        for line in (home / 'metrics.jsonl').read_bytes().splitlines(keepends=True):
            checksum = hashlib.sha256(checksum.encode() + line).hexdigest()
        write_summary(home, metrics_sha256=checksum)
    if len(seeds) > 1:
        write_summary(folder)
"""


def launcher(folder):
    """Writes the made-up launch.py into `folder`."""
    path = Path(folder) / 'launch.py'
    path.write_text(LAUNCHER.format(accuracy=ACCURACY))
    return path


def cell(algorithm, alpha, paper=None, measure=spec.ACCURACY, **changes):
    """A cell of digits; keys of one part."""
    unchanged = digits.get_config()
    config = unchanged.copy_and_resolve_references()
    config.update(algorithm=algorithm, rounds=ROUNDS, seeds=SEEDS, **changes)
    config.federation.alpha = alpha
    return spec.cell(NAMES[algorithm], f'Dir({alpha:g})', 'digits', config, unchanged, paper, measure)


def study():
    """Two methods on two distributions, and tables that read minutes and traffic off the same runs.

    The paper's accuracies are of the data of these runs; its minutes are of CIFAR-10.
    """
    cells = [cell(algorithm, alpha, Paper(85.5, 0.5, 'digits', 40)) for algorithm, alpha in ACCURACY]
    # 90, 92 and 94 % in the fourth and last round, 10 % less in the third: 82 % is reached there by the last two alone
    minutes = cell('semisfl', 1.0, Paper(86.5, None, 'cifar10', 4000), Measure('minutes', 0.82))
    gigabytes = cell('semisfl', 1.0, None, Measure('gigabytes', 0.93))
    tables = (
        Table('Accuracies', tuple(cells), 'Method', 'SemiSFL', ('values', 'accuracy_rounds')),
        Table('Minutes', (minutes,)),
        Table('Gigabytes', (gigabytes,)),
    )
    return Study('toy', 'smoke', 'A toy', tables, ('A note.',), 'Made up.')


if __name__ == '__main__':
    root, path = sys.argv[1:]
    engine.run(study(), {}, root, Path(path))
