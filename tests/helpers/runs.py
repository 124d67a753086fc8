"""Tiny runs of the command, in this process or in one of their own."""

import contextlib
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from jax.extend import core as jax_core

import launch
from semisfl_jax import algorithms
from semisfl_jax import config as config_lib
from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError
from semisfl_jax.config import command_line, ignored_keys
from semisfl_jax.training import diagnostics, metrics
from semisfl_jax.training.checks import TIMES

ROOT = Path(launch.__file__).parent
PROCESSOR = Path('/proc/cpuinfo')
HANGS = 3600  # seconds after which a process hangs; a slow machine needs minutes
DIGITS = f'--config={ROOT}/configs/digits.py'
# Views that change no image, as they take half of the time that a tiny round is traced and compiled for.
# tests/test_golden.py runs every method with views, and so does whoever needs them.
PLAIN = {'augment.operations': 0, 'augment.crop': 0.0, 'augment.cutout': 0}
VIEWS = {'augment.operations': 2, 'augment.crop': 0.125, 'augment.cutout': 4}  # those of configs/digits.py
# Four rounds with an evaluation after each and a checkpoint after every second one. K_s is compared over windows of
# one round and checked every second round.
TINY = {
    'rounds': 4,
    'k_s': 8,
    'k_u': 2,
    'batch_size': 4,
    'server_batch_size': 4,
    'queue_size': 16,
    'eval_every': 1,
    'checkpoint_every': 2,
    'federation.num_active': 3,
    'federation.partition': 'uniform',  # shapes, and so compiled programs, that no seed changes
    'frequency.period': 1,
    'frequency.horizon': 2,
    'frequency.check_every': 2,
    **PLAIN,
}


def processor_has(*words):
    """Whether Linux says all of them of the processor: its maker, and instructions such as avx512f."""
    return PROCESSOR.exists() and set(words) <= set(PROCESSOR.read_text().split())


def command(*words):
    """Runs `semisfl WORDS` in this process; returns the exit status."""
    return launch.main(['semisfl', *map(str, words)])


def words_of(name, config=DIGITS):
    """The words of a tool for a tiny digits run."""
    return [name, config, *(f'--config.{key}={value}' for key, value in TINY.items())]


def words(workdir, **changes):
    """The command line of a tiny digits run. Dots in keys are written as two underscores.

    Keys of TINY that the run has no use for are left out: the command would tell of them.
    """
    settings = {key.replace('__', '.'): value for key, value in changes.items()}
    given = [f'--config.{key}={value}' for key, value in (TINY | settings).items()]
    with contextlib.suppress(UserError):
        config = command_line.parse(['launch.py', DIGITS, *given]).config
        config_lib.check(config)
        idle = ignored_keys.find(config).keys() - settings.keys()
        given = [f'--config.{key}={value}' for key, value in (TINY | settings).items() if key not in idle]
    return [DIGITS, f'--workdir={workdir}', *given]


def run(workdir, **changes):
    """Runs in this process; returns the exit status."""
    return launch.main(['launch.py', *words(workdir, **changes)])


def change_rounds(monkeypatch, change):
    """In place of the round of any method, what `change` makes of it is computed."""
    build = algorithms.build

    def build_changed(*arguments):
        algorithm = build(*arguments)
        return algorithm._replace(round=change(algorithm.round))

    monkeypatch.setattr(algorithms, 'build', build_changed)


def start_process(workdir, prelude='', environment=(), **changes):
    """Starts a process of its own that runs after the Python statements `prelude`."""
    code = f'import sys, launch\n{prelude}\nsys.exit(launch.main(sys.argv))'
    command = [sys.executable, '-c', code, *words(workdir, **changes)]
    own = os.environ | {'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(ROOT)} | dict(environment)
    return subprocess.Popen(command, cwd=ROOT, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end_process(process):
    """Waits for a process; its exit status and what it printed. One that does not end is killed."""
    try:
        stdout, stderr = process.communicate(timeout=HANGS)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def run_process(workdir, prelude='', **changes):
    """Runs in a process of its own, after the Python statements `prelude`."""
    return end_process(start_process(workdir, prelude, **changes))


def run_tests(*paths, flags, marks='', **environment):
    """Runs the tests of files with these marks in a process of its own, its programs compiled with XLA's `flags`."""
    options = '-m', marks, '-p', 'no:cacheprovider', '-p', 'no:xdist'
    command = [sys.executable, '-m', 'pytest', *options, *map(str, paths)]
    own = os.environ | {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': flags} | environment
    result = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=HANGS, check=False)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert '100%' in result.stdout
    print(result.stdout)


def write_run(folder, seed, algorithm, scores, headline='teacher', summary=None, **settings):
    """A finished run, made up, with `scores` by key of metrics.jsonl: a list, one for each round; returns its folder.

    Dots in keys of its configuration are written as two underscores.
    """
    folder.mkdir()
    (rounds,) = {len(values) for values in scores.values()}
    made_with = {'seed': seed, 'algorithm': algorithm, 'rounds': rounds, 'data': {'name': 'digits'}}
    for key, value in settings.items():
        group, _, name = key.rpartition('__')
        (made_with.setdefault(group, {}) if group else made_with)[name] = value
    file_io.write_json(folder / 'config.json', made_with)
    for i in range(rounds):
        line = {'round': i + 1, **{key: values[i] for key, values in scores.items()}}
        metrics.append(folder / 'metrics.jsonl', line)
    sums = {'config_hash': config_lib.identity_hash(made_with)}
    sums['metrics_sha256'] = functools.reduce(metrics.chain, records(folder), '')
    content = {'rounds': rounds, 'headline': headline, **sums, **(summary or {})}
    file_io.write_json(folder / 'summary.json', file_io.seal(content))
    return folder


def lines(workdir):
    """metrics.jsonl without the times, which alone may differ between two runs; the rest byte for byte."""
    text = (Path(workdir) / 'metrics.jsonl').read_text()
    assert text.endswith('\n')
    entries = [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in text.splitlines()]
    return [json.dumps(record) for record in entries]


def records(workdir):
    """The lines of metrics.jsonl."""
    return [json.loads(line) for line in (Path(workdir) / 'metrics.jsonl').read_text().splitlines()]


def files(folder):
    """Every file below a folder, with its content."""
    return {path: path.read_bytes() for path in sorted(Path(folder).rglob('*')) if path.is_file()}


def assert_diagnostics_close(folder, expected, number):
    """Diagnostics of two runs up to rounding, by which an image or a slot may fall on another side here and there."""
    ours, theirs = (diagnostics.load(Path(run_folder), number) for run_folder in (folder, expected))
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        if values.dtype.kind == 'f':
            np.testing.assert_allclose(ours[name], values, rtol=1e-3)
        elif values.dtype.kind == 'U' or name == 'unlabeled':
            np.testing.assert_array_equal(ours[name], values)
        else:
            assert np.abs(ours[name] - values).sum() <= 0.04 * values.sum(), name


def config(**changes):
    """The configuration of a tiny digits run."""
    return command_line.parse(['launch.py', *words('', **changes)]).config


def equations(jaxpr):
    """All equations of a program, with those of inner functions, loops and branches."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax_core.jaxprs_in_params(equation.params):
            yield from equations(inner)
