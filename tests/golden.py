"""Rounds of every method but four, which are parts of others, as they were: so a change of the code that should change
no number can be told from one that does.

    python -m tests.golden bytes            one SHA-256 for each run below and for 20 rounds of configs/digits.py, to be
                                            compared before and after a change, on one machine
    python -m tests.golden write            measures those that tests/golden.json lacks, as of a new method
    python -m tests.golden write CASE ...   measures these anew, after a change that is meant to change their numbers;
                                            `write all`: all

tests/test_golden.py compares with tests/golden.json, up to what another processor or version of JAX rounds otherwise.
"""

import contextlib
import hashlib
import json
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np

import launch
import semisfl_jax as sfl
from semisfl_jax.algorithms import METHODS
from semisfl_jax.training import load
from tests.helpers import needs, runs

FILE = Path(__file__).with_suffix('.json')
# Three rounds, in which every pseudo-label counts: none is near the threshold. An evaluation after each.
ROUNDS = {'rounds': 3, 'checkpoint_every': 3, 'threshold': 0.0, 'federation.partition': 'dirichlet', **runs.VIEWS}
HELPERS = {'fedmatch.helper_every': 2, 'fedmatch.helpers_persist': True}
DIGITS = 'digits.py', 'digits.py:code'
PARTS = 'fed_sh', 'fed_svr', 'mfed_fl', 'mfed_local'  # of other methods
CASES = {
    **{name: {} for name in METHODS if name not in PARTS},
    'semisfl, a teacher that moves': {'algorithm': 'semisfl', 'client_teacher_ema': True, 'queue': 'off'},
    'fedavg, uda': {'algorithm': 'fedavg', 'local.objective': 'uda', 'data.client_labels': 20, 'federation.mu': 1},
    'fedavg, supervised': {'algorithm': 'fedavg', 'local.objective': 'supervised', 'data.client_labels': -1},
    'fedprox': {'local.epochs': 1, 'local.optimizer_state': 'kept'},
    'fedmatch': HELPERS,
    'fedmatch, labels at clients': {'algorithm': 'fedmatch', 'data.client_labels': 20, 'federation.mu': 1, **HELPERS},
    'feddure': {'data.client_labels': 20, 'federation.mu': 1, 'feddure.fine_rate': 5.0},
    'm_fed': {'mfed.weight': 0.1},
    'semifl, server first': {'algorithm': 'semifl', 'semifl.order': 'server_first'},
    'splitfed, v2': {'algorithm': 'splitfed', 'splitfed.version': 'v2'},
}


def settings(case):
    """The keys of a case."""
    changes = CASES[case]
    return ROUNDS | needs.changes(changes.get('algorithm', case)) | changes


def _words(case):
    return {key.replace('.', '__'): value for key, value in settings(case).items()}


def run(case, folder):
    """Runs a case, or 20 rounds of a configuration of DIGITS, in this process."""
    if case in DIGITS:
        config = f'--config={runs.ROOT}/configs/{case}'
        code = launch.main(['launch.py', config, f'--workdir={folder}', '--config.rounds=20'])
    else:
        code = runs.run(folder, **_words(case))
    assert code == 0, case


def state_of(case):
    """The shapes of the state of a case, which nothing runs."""
    simulation = sfl.build(runs.config(**_words(case)))
    return jax.eval_shape(simulation.init).state


def parts(state):
    """The leaves of each part of a state, by its name."""
    named = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        named.setdefault('.'.join(str(key).strip(".[]'") for key in path[:2]), []).append(leaf)
    return named


def measure(folder):
    """What is kept of a run: the metrics of its rounds, and two numbers for each part of its last state.

    They are the norm of a part and its product with a fixed random direction, which no change of a weight leaves as it
    was.
    """
    folder = Path(folder)
    state = jax.device_get(load.state(folder, load.experiment(folder))[1])
    numbers = {}
    for name, leaves in parts(state).items():
        vector = np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in leaves])
        direction = np.random.default_rng(0).normal(size=vector.size)
        numbers[name] = [float(np.linalg.norm(vector)), float(vector @ direction)]
    return {'rounds': [json.loads(line) for line in runs.lines(folder)], 'state': numbers}


def digest(folder):
    """SHA-256 of metrics.jsonl without its times."""
    return hashlib.sha256('\n'.join(runs.lines(folder)).encode()).hexdigest()


def of_runs(cases, kept):
    """{case: what is kept of its folder}. What runs print goes to standard error, for it has times in it."""
    results = {}
    with tempfile.TemporaryDirectory() as root, contextlib.redirect_stdout(sys.stderr):
        for index, case in enumerate(cases):
            folder = Path(root, str(index))
            run(case, folder)
            results[case] = kept(folder)
    return results


def write(names):
    """Measures some cases anew, by default those that FILE lacks."""
    before = json.loads(FILE.read_text())
    results = before | of_runs(names or CASES.keys() - before.keys(), measure)
    FILE.write_text(json.dumps({case: kept for case, kept in results.items() if case in CASES}, indent=1) + '\n')


if __name__ == '__main__':
    command, *names = sys.argv[1:] or ['']
    if command == 'bytes' and not names:
        for name, value in of_runs([*CASES, *DIGITS], digest).items():
            print(value, name)
    elif command == 'write' and (names == ['all'] or CASES.keys() >= {*names}):
        write(CASES if names == ['all'] else names)
    else:
        sys.exit(__doc__)
