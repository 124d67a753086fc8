"""What the start of a run takes, stage by stage: cold, without compiled programs, and warm, the same command again.

    python -m benchmarks.starts                                        this checkout
    python -m benchmarks.starts --before=../other --repeats=5          beside another one, alternating
    python -m benchmarks.starts --cases=digits,cnn --repeats=1

Each start is a process of its own, of one small round on synthetic images (the digits' own), with a folder of compiled
programs for each checkout. The stages are seconds by the clock, so nothing else should run; `processor` is what all
cores did. OUT/starts.md has the medians, OUT/starts.json every start.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from absl import flags

from benchmarks import commands
from semisfl_jax.base import machine
from semisfl_jax.base.errors import UserError

ROOT = Path(__file__).parents[1]
FAKE: dict[str, Any] = {'data.fake': True, 'data.fake_size': 2000, 'data.num_labeled': 200, 'eval_batch_size': 100}
SMALL: dict[str, Any] = {**FAKE, 'k_s': 2, 'k_u': 1, 'batch_size': 8, 'server_batch_size': 8}
CASES: dict[
    str, tuple[str, dict[str, Any]]
] = {  # configuration and changes; the sizes of a round change what it takes, not what it takes to compile it
    'digits': ('digits', {}),
    'cnn': ('svhn', SMALL),
    'alexnet': ('cifar10', SMALL),
    'fedavg': ('fedavg', {**FAKE, 'data.name': 'mnist', 'model.name': 'mcmahan_2nn', 'federation.num_active': 2}),
    'm_fed': ('digit_scenes', {'data.num_unlabeled': 140}),
}
STAGES = ('imports', 'data and model', 'trace', 'lower', 'compile', 'state and evaluation', 'round', 'end')
ALL = (*STAGES, 'total', 'processor')


def start(checkout: Path, case: str, cache: Path) -> dict[str, float]:
    """The seconds of the stages of one start, `total` by the clock and `processor`.

    Raises:
      UserError: it fails.
    """
    name, changes = CASES[case]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / 'seconds.json'
        words = [f'--config={checkout}/configs/{name}.py', f'--workdir={folder}/run', '--config.rounds=1']
        words += [f'--config.{key}={value}' for key, value in changes.items()]
        own = {key: value for key, value in os.environ.items() if key != 'JAX_COMPILATION_CACHE_DIR'}
        own |= {'PYTHONPATH': str(checkout), 'XDG_CACHE_HOME': str(cache)}
        command = [sys.executable, str(ROOT / 'benchmarks' / 'start_side.py'), str(file), *words]
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(command, env=own, cwd=checkout, capture_output=True, text=True, check=False)
        total, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise UserError(f'{case} in {checkout} failed: {done.stderr.strip().splitlines()[-1:]}')
        processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {**json.loads(file.read_text()), 'total': total, 'processor': processor}


def report(starts: dict[str, list[dict[str, float]]], repeats: int) -> str:
    """A table of medians: a row for each case, cold or warm, and checkout."""
    rows = []
    for title, found in starts.items():
        medians = [statistics.median(each.get(stage, 0.0) for each in found) for stage in ALL]
        rows.append([title, *(f'{seconds:.2f}' for seconds in medians)])
    where = f'{machine.processor()}, {machine.cores()} cores'
    return f'Seconds, median of {repeats}; {where}.\n\n{commands.markdown(["", *ALL], rows)}\n'


def main() -> None:
    options = flags.FLAGS
    if unknown := set(options.cases) - set(CASES):
        raise UserError(f'--cases={min(unknown)} is not a case; use some of {", ".join(CASES)}')
    checkouts = {'before': Path(options.before).absolute(), 'after': ROOT} if options.before else {'': ROOT}
    if missing := [path for path in checkouts.values() if not (path / 'semisfl_jax').is_dir()]:
        raise UserError(f'--before={missing[0]} is no checkout of this repository')
    out = commands.folder(options.out)
    starts: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.repeats):
            for case in options.cases:
                for name, checkout in checkouts.items():
                    cache = Path(folder) / f'cache_{name}'
                    shutil.rmtree(cache / 'semisfl_jax' / 'compiled', ignore_errors=True)  # decoded images stay
                    if not number:  # the first start decodes images and writes bytecode
                        start(checkout, case, cache)
                        shutil.rmtree(cache / 'semisfl_jax' / 'compiled', ignore_errors=True)
                    for kind in ('cold', 'warm'):
                        title = ', '.join(filter(None, (case, kind, name)))
                        starts.setdefault(title, []).append(start(checkout, case, cache))
                        print(f'{title}: {starts[title][-1]["total"]:.1f} s', flush=True)
                        (out / 'starts.json').write_text(json.dumps(starts, indent=1))
                        (out / 'starts.md').write_text(report(starts, options.repeats))
    print(report(starts, options.repeats))


if __name__ == '__main__':
    # here, as tests import this module beside others with such flags
    flags.DEFINE_list('cases', list(CASES), f'of {", ".join(CASES)}')
    flags.DEFINE_string('before', '', 'folder of another checkout, with which this one alternates')
    flags.DEFINE_integer('repeats', 5, 'cold and warm starts of each case and checkout', lower_bound=1)
    flags.DEFINE_string('out', 'benchmark_results', 'folder of starts.md and starts.json')
    commands.run(main, __doc__)
