"""Parses command-line arguments into a configuration; every mistake becomes a one-line error.

At the end, what the commands beside training share: their help, and flags of their own.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from absl import flags
from ml_collections import ConfigDict, config_flags

from semisfl_jax.config import keys, load
from semisfl_jax.core.errors import UserError, exit_status, first_line

HELP = """\
Trains an image classifier by semi-supervised split federated learning (SemiSFL) or by another method: a server with few
labeled images, many clients with unlabeled ones. Some methods train on clients' labels, or dense tasks.

    python launch.py --config=configs/NAME.py[:code] [--workdir=DIR] [--config.KEY=VALUE ...]

If the package is installed without its repository: `semisfl` or `python -m semisfl_jax`, with --config=NAME.

configurations
{configs}

studies: each makes a table or figure, most of them a paper's, from many runs (configs/studies/NAME.py:SCALE; smoke is
  the smallest scale, and without one the command names all; --config.study_rows=ROW runs one row, see docs/studies.md)
{studies}
sweeps: each tunes several methods, with equal budgets (configs/sweeps/NAME.py:SCALE; smoke, cpu): {sweeps}

options
  --config=FILE[:code]  configuration; ':code' uses the settings of the authors' code instead of the paper's.
                        Those listed above also work by name: --config=digits, --config=studies/table4:smoke
  --config.KEY=VALUE    overrides a key; configs/default.py has them, docs/options.md those of single methods
  --workdir=DIR         output folder; default runs/NAME-HASH, always the same for the same experiment
  --help [KEY ...]      shows this text, or the default, meaning, values and readers of keys: --help federation.alpha;
                        with --config=FILE also of those that your own file registers

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


STUDY, SWEEP = 'study', 'sweep'  # mark configurations of many runs; not command-line keys


class Command(NamedTuple):
    """What the user asked for."""

    config: ConfigDict  # locked
    name: str  # of the configuration file, without .py
    workdir: str  # '' means the default
    given: dict[str, Any]  # dotted keys overridden on the command line -> values


def help_text(words: Sequence[str] = (), own: Sequence[str] = ()) -> str:
    """The help: on keys or groups of keys if `words` names some; else with the first docstring line of every
    configuration shipped with the package. `own`: configurations whose methods have keys, too.

    Raises:
      UserError: one of `words` is no key, or one of `own` no configuration.
    """
    if words:
        for name in own:
            load.get_config(name)
        return '\n'.join(keys.help_of(word) for word in words)
    lines = []
    for path in sorted(load.CONFIGS.glob('*.py')):
        if path.stem not in ('__init__', 'default'):
            docstring = ast.get_docstring(ast.parse(path.read_text())) or ''
            lines.append(f'  configs/{path.name:<20}{docstring.splitlines()[0] if docstring else ""}')
    studies = textwrap.fill(_listed('studies'), 118, initial_indent='  ', subsequent_indent='  ')
    return HELP.format(configs='\n'.join(lines), studies=studies, sweeps=_listed('sweeps'))


def _listed(folder: str) -> str:
    files = sorted((load.CONFIGS / folder).glob('*.py'))
    return ', '.join(path.stem for path in files if 'def get_config' in path.read_text())


# Names of rows, columns and methods without quotation marks, in which a space or a number is part of a name
_NAMES = re.compile(r"""^(--?config\.(?:study_rows|study_columns|sweep_methods)=)([^'"]*[^'",])$""")


def parse(argv: list[str], studies: bool = False) -> Command:
    """Reads the command line `argv`, program name first; `studies`: whether the program can run studies and sweeps.

    Raises:
      UserError: an unknown flag or key, a wrong type, a missing configuration file, or a study where a run is expected.
    """
    try:
        command = _parse(argv)
    except flags.UnrecognizedFlagError as error:
        near = keys.meant(error.flagname, keys.fields())
        hint = f'; write --config.{near}=…' if near else ''
        raise UserError(f'--{error.flagname} is not a flag{hint} (see --help)') from error
    except flags.Error as error:
        raise UserError(f'{str(error).splitlines()[0]} (see --help)') from error
    for kind in (STUDY, SWEEP):
        if kind in command.config and not studies:
            raise UserError(f'{command.name} is a {kind} of many runs; give one run')
    return command


def _parse(argv: list[str]) -> Command:
    values = flags.FlagValues()
    flags.DEFINE_string('config', None, 'FILE[:code]', flag_values=values)
    words = values(argv, known_only=True)[1:]
    if not values.config:
        raise UserError('--config is missing; write --config=digits, for example (see --help)')
    name, colon, settings = values.config.partition(':')
    path = load.find(name)
    config = load.load_file(path, settings if colon else None)
    types = keys.types(config)
    known_keys = [key for key in types if key not in (STUDY, SWEEP)]
    words = [_NAMES.sub(lambda found: f'{found[1]}{found[2]!r},', word) for word in words]
    for word in words:  # absl would fail on unknown keys with a traceback
        match = re.match(r'--?(?:no)?config\.([^=]*)', word)
        if match and match[1] not in known_keys:
            raise UserError(keys.unknown(match[1], known_keys, ' of this configuration'))
    values = flags.FlagValues()
    config_flags.DEFINE_config_dict('config', config, flag_values=values, sys_argv=['', *words])
    flags.DEFINE_string('workdir', '', 'folder of the outputs', flag_values=values)
    try:
        unexpected = values(['', *words])[1:]
    except flags.IllegalFlagValueError as error:
        flag = re.match(r'flag (--config\.([^=]*)=.*?): ', str(error), re.DOTALL)
        what = f'{flag[1]}: the value must be of type {types[flag[2]].__name__}' if flag else str(error)
        raise UserError(what) from error
    if unexpected:
        raise UserError(f"'{unexpected[0]}' is not a flag; write --config.KEY=VALUE (see --help)")
    given = config_flags.get_override_values(values['config'])
    if not {STUDY, SWEEP} & set(config):  # whose runs have methods of their own
        load.apply_setting(config, given=given.keys())
    return Command(config, path.stem, values.workdir, given)


# --- commands beside training


def main(argv: list[str], text: str | None, command: Callable[[], None], needs_words: bool = False) -> int:
    """Prints the help `text` if `argv` asks for it, and otherwise runs `command`; returns the exit status.

    With `needs_words`, a command line without words is a mistake, before whose line the help is printed.
    """
    asked = {'-h', '--help'} & set(argv)

    def run() -> None:
        if asked or (needs_words and len(argv) < 2):
            print(text)
        if not asked:
            command()

    try:
        return exit_status(run)
    except KeyboardInterrupt:
        print('interrupted', file=sys.stderr)
        return 130


def own_flags(values: flags.FlagValues, argv: Sequence[str], others: bool = True) -> list[str]:
    """Reads the flags that `values` defines, the help of each completing 'must be …'; returns the other words.

    `argv` is the command line, program name first; with `others` it may have other flags, which are among the words.

    Raises:
      UserError: one of them lacks its value, or has a wrong one; or there is another one that may not be.
    """
    try:
        return values(argv, known_only=others)
    except flags.Error as error:
        wrong = re.match(r'flag (--(\w+)=.*?): ', str(error), re.DOTALL)
        what = f'{wrong[1]}: must be {values[wrong[2]].help}' if wrong else first_line(error)
        raise UserError(f'{what} (see --help)') from error
