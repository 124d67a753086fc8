"""Parses command-line arguments into a configuration; every mistake becomes a one-line error."""

from __future__ import annotations

import ast
import os
import re
import textwrap
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags
from ml_collections import ConfigDict, config_flags

from semisfl_jax.config import keys, kinds, presets, sources
from semisfl_jax.core import file_io
from semisfl_jax.core.errors import UserError, nearest

HELP = """\
Trains an image classifier by semi-supervised split federated learning (SemiSFL) or by a baseline method: a server with
few labeled images, many clients with unlabeled ones.

    python launch.py --config=configs/NAME.py[:code] [--workdir=DIR] [--config.KEY=VALUE ...]

If the package is installed without its repository: `semisfl` or `python -m semisfl_jax`, with --config=NAME.

configurations
{configs}

studies: each reproduces a table or figure of a paper from many runs (configs/studies/NAME.py:SCALE; smoke, cpu,
  full; those of SemiSFL also digits, mnist)
{studies}
sweeps: each tunes several methods, with equal budgets (configs/sweeps/NAME.py:SCALE; smoke, cpu): {sweeps}

options
  --config=FILE[:code]  configuration; ':code' uses the settings of the authors' code instead of the paper's.
                        Those listed above also work by name: --config=digits, --config=studies/table4:smoke
  --config.KEY=VALUE    overrides a key; configs/default.py and docs/options.md document all keys
  --workdir=DIR         output folder; default runs/NAME-HASH, always the same for the same experiment
  --help                shows this text

examples
  python launch.py --config=configs/digits.py                              needs no download
  python launch.py --config=configs/digits.py --config.algorithm=supervised_only --config.seed=1
  python launch.py --config=configs/digits.py --config.seeds=0,1,2         three seeds in one program
  python launch.py --config=configs/cifar10.py --config.data.data_dir=DIR --config.federation.partition=dirichlet
  python launch.py --config=configs/stl10.py --config.data.fake=True       synthetic images, to test a machine
  python launch.py --config=configs/studies/table4.py:smoke                a table of the paper, tried out in minutes

outputs
  metrics.jsonl     one line per round: losses, K_s, accuracy, costs     summary.json   final results
  config.json       the full configuration                               partition.npz  which client holds which image
  tensorboard/      the same metrics: tensorboard --logdir runs          checkpoints/   to resume from
  diagnostics/      with config.diagnostics_every: arrays on pseudo-labels, queue and teacher
  With several seeds, each has all of this in its own folder seed_N, and the summary.json above them has the means and
  standard errors.

Running the same command again resumes from the last checkpoint, and trains further if `rounds` has grown. Ctrl-C
finishes the round, saves and stops; a second Ctrl-C stops at once. Exit status: 0 finished, 2 error in the command or
the run, 3 training diverged, 130 stopped by Ctrl-C, 143 by SIGTERM.
"""


CONFIGS = Path(str(resources.files('semisfl_jax.configs')))  # configurations shipped with the package
_LONGEST_FLAG = 100
STUDY, SWEEP = 'study', 'sweep'  # mark configurations of many runs; not command-line keys


class Command(NamedTuple):
    """What the user asked for."""

    config: ConfigDict  # locked
    name: str  # of the configuration file, without .py
    workdir: str  # '' means the default
    given: dict[str, Any]  # dotted keys overridden on the command line -> values


def help_text() -> str:
    """The help text, with the first docstring line of every configuration shipped with the package."""
    lines = []
    for path in sorted(CONFIGS.glob('*.py')):
        if path.stem not in ('__init__', 'default'):
            docstring = ast.get_docstring(ast.parse(path.read_text())) or ''
            lines.append(f'  configs/{path.name:<20}{docstring.splitlines()[0] if docstring else ""}')
    studies = textwrap.fill(_listed('studies'), 118, initial_indent='  ', subsequent_indent='  ')
    return HELP.format(configs='\n'.join(lines), studies=studies, sweeps=_listed('sweeps'))


def _listed(folder: str) -> str:
    files = sorted((CONFIGS / folder).glob('*.py'))
    return ', '.join(path.stem for path in files if 'def get_config' in path.read_text())


def parse(argv: list[str], studies: bool = False) -> Command:
    """Reads the command line `argv`, program name first; `studies` says whether the program can run studies
    and sweeps.

    Raises:
      UserError: an unknown flag or key, a value of the wrong type, a missing configuration file, or a study or
        sweep where a single run is expected.
    """
    try:
        command = _parse(argv)
    except flags.Error as error:
        raise UserError(f'{str(error).splitlines()[0]} (see --help)') from error
    for kind in (STUDY, SWEEP):
        if kind in command.config and not studies:
            raise UserError(
                f'{command.name} is a {kind} of many runs, which only launch.py can run; give the configuration of one '
                'run'
            )
    return command


def _parse(argv: list[str]) -> Command:
    file = flags.FlagValues()
    flags.DEFINE_string('config', None, 'FILE[:code]', flag_values=file)
    _check_lengths(argv)
    others = file(argv, known_only=True)[1:]
    if not file.config:
        raise UserError('--config is missing; try: python launch.py --config=configs/digits.py (see --help)')
    name, colon, settings = file.config.partition(':')
    path = find(name)
    unchanged = sources.load(path, settings if colon else None)
    _check_keys(others, unchanged)
    others, unset = _without_none(others)
    argv = ['', f'--config={path}{colon}{settings}', *others]
    values = _config_flag(argv)
    flags.DEFINE_string('workdir', '', 'folder of the outputs', flag_values=values)
    try:
        unexpected = values(argv)[1:]
    except flags.IllegalFlagValueError as error:
        raise UserError(_wrong_type(str(error), unchanged)) from error
    if unexpected:
        raise UserError(f"'{unexpected[0]}' is not a flag; write --config.KEY=VALUE (see --help)")
    given = config_flags.get_override_values(values['config']) | dict.fromkeys(unset)
    values.config.update_from_flattened_dict(dict.fromkeys(unset))
    presets.apply(values.config, given=given.keys())
    return Command(values.config, path.stem, values.workdir, given)


def find(given: str) -> Path:
    """The file of a configuration, given by path or by the name of one shipped with the package.

    Raises:
      UserError: no such file exists.
    """
    path = file_io.expand_home(given, '--config')
    if os.path.isfile(path):  # unlike Path.is_file, returns False for an overlong name
        return path
    if os.path.exists(path) and (kind := file_io.other_kind(os.stat(path).st_mode)):
        raise UserError(f'--config={given} is {kind}; give a file with a configuration (see --help)')
    packaged = CONFIGS / f'{given.removeprefix("configs/").removesuffix(".py")}.py'
    if os.path.isfile(packaged) and packaged.stem not in ('__init__', 'default') and '..' not in given:
        return packaged
    raise UserError(f'there is no configuration file {path}; {_meant(path)} (see --help)')


def _config_flag(argv: list[str]) -> flags.FlagValues:
    values = flags.FlagValues()
    config_flags.DEFINE_config_file('config', flag_values=values, sys_argv=argv)
    return values


def _check_keys(words: list[str], config: ConfigDict) -> None:
    """Rejects overrides of keys that the configuration does not have; absl would fail on them with a traceback."""
    known_keys = [key for key in keys.flat(config) if key not in (STUDY, SWEEP)]
    for word in words:
        match = re.match(r'--?(?:no)?config\.([^=]*)', word)
        if match and match[1] not in known_keys:
            raise UserError(keys.unknown(match[1], known_keys, ' of this configuration'))


def _without_none(words: list[str]) -> tuple[list[str], list[str]]:
    """The words without those that set a key to None, which absl cannot read, and the keys that end as None."""
    left: list[str] = []
    unset: list[str] = []
    rest = iter(words)
    for word in rest:
        match = re.fullmatch(r'--?config\.([^=]*)(?:=(.*))?', word, re.DOTALL)
        if not match or match[1] not in kinds.optional():
            left.append(word)
            continue
        key, following = match[1], next(rest, None) if match[2] is None else None
        unset = [other for other in unset if other != key]  # the last word counts
        if 'None' in (match[2], following):
            unset.append(key)
        else:
            left += [word] if following is None else [word, following]
    return left, unset


def _check_lengths(words: list[str]) -> None:
    """Rejects overlong flag names; absl's search for the nearest flag would overflow the stack."""
    for word in words:
        name = re.match(r'--?([^=]*)', word)
        if name and len(name[1]) > _LONGEST_FLAG:
            raise UserError(f"'{word}' is not a flag; write --config.KEY=VALUE (see --help)")


def _meant(path: Path) -> str:
    """A hint for a configuration file that does not exist."""
    files: dict[str, Path] = {}
    ours = [folder / name for folder in (Path('configs'), CONFIGS) for name in ('', 'studies', 'sweeps')]
    for folder in (path.parent, *ours):
        for file in sorted(folder.glob('*.py')) if os.path.isdir(folder) else ():
            if file.stem != 'default' and 'def get_config' in file.read_text(errors='replace'):
                files.setdefault(
                    file.stem, file.relative_to(CONFIGS).with_suffix('') if file.is_relative_to(CONFIGS) else file
                )
    name = nearest(path.stem, files)
    return f'did you mean {files[name]}?' if name else 'see configs/ for those available'


def _wrong_type(message: str, config: ConfigDict) -> str:
    """Rewords absl's 'flag --config.KEY=VALUE: reason'."""
    flag = re.match(r'flag (--config\.([^=]*)=.*?): ', message, re.DOTALL)
    if not flag:
        return message
    return f'{flag[1]}: the value must be of type {kinds.of(config)[flag[2]].__name__}'
