"""What a change of the code that should change nothing leaves as it is, beside the numbers of `tests.golden`.

    python -m tests.gate listing   prints all of it, for a diff between two commits
    python -m tests.gate write     writes tests/gate.json anew, after a change that stands in the changelog

Of every configuration the identity hash and the default folder, of every study and sweep at every scale the names and
commands of its runs, the report of a made-up study and sweep, and the public names of the package.
"""

import contextlib
import functools
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from unittest import mock

import semisfl_jax as sfl
from semisfl_jax import config as config_lib
from semisfl_jax.config import command_line, load
from semisfl_jax.lab.studies import engine, plan, results, sweeps
from tests.helpers import runs, studies_toy, studies_words, sweeps_toy

FILE = Path(__file__).with_suffix('.json')
FILES = [path for path in sorted(load.CONFIGS.glob('*.py')) if path.stem != '__init__']
CONFIGURATIONS = [path.stem for path in FILES]
CONFIGURATIONS += [f'{path.stem}:code' for path in FILES if 'get_config(settings' in path.read_text()]
STUDIES = [f'{name}:{scale}' for name, scale in studies_words.ALL]
SWEEPS = [f'sweeps/{name}:{scale}' for name in ('digits', 'mnist') for scale in ('smoke', 'cpu')]
MADE = {'commit': '0123abc', 'machine': 'a machine, 2 cores'}


@functools.cache
def expected():
    """What was written."""
    return json.loads(FILE.read_text())


def configuration(name):
    """The lines on a configuration."""
    config = config_lib.resolve(load.get_config(name))
    return [config_lib.identity_hash(config), config_lib.default_workdir(config, name.partition(':')[0])]


def jobs(name):
    """The lines on the runs of a study, or on the first run of each method of a sweep."""
    file, _, scale = name.partition(':')
    if file.startswith('sweeps/'):
        words = ['', f'--config={runs.ROOT}/configs/{file}.py:{scale}']
        sweep = command_line.parse(words, studies=True).config.sweep
        made = [plan.trial_job(sweep, entry, sweeps.untuned(sweep, entry)) for entry in sweep.entries]
    else:
        made = studies_words.jobs(studies_words.study(file, scale))
    return lines(made)


def lines(jobs):
    """Name and command of every job."""
    return [f'{job.name} {job.command()}' for job in jobs]


def report(kind):
    """{file: its bytes} of the report of the toy 'study' or 'sweep', whose runs are made up."""
    toy = studies_toy if kind == 'study' else sweeps_toy
    with tempfile.TemporaryDirectory() as home, mock.patch.object(results, 'this_machine', return_value=MADE):
        with mock.patch.object(engine, '_processor_seconds', return_value=0.0):
            folder = engine.run(getattr(toy, kind)(), {}, f'{home}/root', toy.launcher(home))
        texts = [path for path in sorted(folder.iterdir()) if path.suffix in ('.md', '.csv')]
        return {path.name: path.read_text() for path in texts}


def digest(lines):
    """The first characters of SHA-256 over some lines."""
    return hashlib.sha256('\n'.join(lines).encode()).hexdigest()[:16]


def whole():
    """All that the gate keeps."""
    return {
        'configurations': {name: configuration(name) for name in CONFIGURATIONS},
        'runs': {name: digest(jobs(name)) for name in [*STUDIES, *SWEEPS]},
        'reports': {kind: {name: digest([text]) for name, text in report(kind).items()} for kind in ('study', 'sweep')},
        'names': sorted(sfl.__all__),
    }


def listing():
    """The same as lines in full."""
    for name in CONFIGURATIONS:
        yield ' '.join([name, *configuration(name)])
    for name in [*STUDIES, *SWEEPS]:
        yield from (f'{name} {line}' for line in jobs(name))
    for kind in ('study', 'sweep'):
        yield from (f'{kind} {name}\n{text}' for name, text in report(kind).items())
    yield from sorted(sfl.__all__)


if __name__ == '__main__':
    if sys.argv[1:] == ['write']:
        FILE.write_text(json.dumps(whole(), indent=1) + '\n')
    elif sys.argv[1:] == ['listing']:
        with contextlib.suppress(BrokenPipeError):
            for line in listing():
                print(line)
    else:
        sys.exit(__doc__)
