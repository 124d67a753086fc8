"""Parses command-line arguments into a configuration; every mistake becomes a one-line error.

The last section runs the commands beside training.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError, did_you_mean, exit_status, shorten, warn
from semisfl_jax.config import keys, load

LONGEST = 2**24  # bytes of a Python file
STUDY, SWEEP = 'study', 'sweep'  # mark configurations of many runs; not command-line keys


class Command(NamedTuple):
    """The user's request."""

    config: ConfigDict  # locked
    name: str  # of the configuration file, without .py
    workdir: str  # '' means the default
    given: dict[str, Any]  # dotted keys overridden on the command line -> values
    file: str  # what --config names
    grid: dict[str, Any]  # keys with several values -> those values
    jobs: dict[str, Any]  # of LAUNCHER, the flags that were given
    words: list[str]  # those of a run of this configuration
    whole: list[str]  # those without LAUNCHER


def help_text(text: str, words: Sequence[str] = (), own: Sequence[str] = ()) -> str:
    """Returns the help: on the keys, groups or metrics in `words`, else on the command and configurations.

    Args:
      text: of the command, with places for `configs`, the first docstring line of each, and for `studies` and `sweeps`.
      words: keys, groups of keys or metrics.
      own: configurations whose values stand beside the defaults, and whose methods have keys.

    Raises:
      UserError: one of `words` is no key or metric, or one of `own` no configuration.
    """
    if words:
        files = {name: keys.flat(load.get_config(name)) for name in own}
        return '\n'.join(keys.help_of(word, files) for word in words)
    lines = []
    for path in sorted(load.CONFIGS.glob('*.py')):
        if path.stem not in ('__init__', 'default'):
            docstring = ast.get_docstring(ast.parse(path.read_text())) or ''
            lines.append(f'  configs/{path.name:<20}{docstring.splitlines()[0] if docstring else ""}')
    studies = textwrap.fill(_listed('studies'), 118, initial_indent='  ', subsequent_indent='  ')
    return text.format(configs='\n'.join(lines), studies=studies, sweeps=_listed('sweeps'))


def _listed(folder: str) -> str:
    files = sorted((load.CONFIGS / folder).glob('*.py'))
    return ', '.join(path.stem for path in files if 'def get_config' in path.read_text())


def parse(argv: list[str], studies: bool = False) -> Command:
    """Reads a command line.

    Args:
      argv: the command line, program name first.
      studies: the program can run studies and sweeps.

    Raises:
      UserError: an unknown flag or key, a wrong type, a missing configuration file, or a study where a run is expected.
    """
    jobs, whole = read_flags(argv[1:], LAUNCHER if studies else {})
    values, run_words = read_flags(whole, {'workdir': str} | ({'grid': list} if studies else {}))
    workdir, crossed = values.get('workdir', ''), values.get('grid', [])
    values, words = read_flags(run_words, {'config': str})
    if not values.get('config'):
        raise UserError(f'--config is missing; write {typed(argv[0])} --config=digits, for example (see --help)')
    named = values['config']
    file, colon, settings = named.partition(':')
    path = load.find(file)
    config = load.load_file(path, settings if colon else None)
    kinds = {key: kind for key, kind in keys.types(config).items() if key not in (STUDY, SWEEP)}
    values, words = read_flags(words, {f'config.{key}': kind for key, kind in kinds.items()})
    for word in words:
        name = word.lstrip('-').partition('=')[0]
        if name.startswith('config.'):
            raise UserError(keys.unknown(name.removeprefix('config.'), kinds, ' of this configuration'))
        key = keys.meant(name, kinds) or 'KEY'
        raise UserError(f"'{word}' is not a flag; write --config.{key}=VALUE (see --help)")
    given = {name.removeprefix('config.'): value for name, value in values.items()}
    grid = read_grid(crossed, kinds, given)
    config.update_from_flattened_dict(given)
    for kind in (STUDY, SWEEP):
        if kind in config and not studies:
            raise UserError(f'{path.stem} is a {kind} of many runs; give one run')
    if not {STUDY, SWEEP} & set(config):  # their runs have methods of their own
        load.apply_setting(config, given=given.keys())
    return Command(config.lock(), path.stem, workdir, given, named, grid, jobs, run_words, whole)


def read_grid(flags: Sequence[str], kinds: Mapping[str, type], given: Collection[str] = ()) -> dict[str, Sequence[Any]]:
    """Reads what --grid names: 'lr=0.01,0.02' has two values, 'k_u=1-4' four, and "data.tasks=('semseg','edges')," one.

    Args:
      flags: KEY=VALUES each.
      kinds: the type of each key.
      given: keys that have a value of their own.

    Returns:
      {key: its values}.

    Raises:
      UserError: an unknown key, one that has values twice, or a value of another type.
    """
    grid: dict[str, Sequence[Any]] = {}
    for flag in flags:
        key, equals, text = flag.partition('=')
        key = key.removeprefix('config.')
        if key not in kinds:
            raise UserError(f'--grid: {keys.unknown(key, kinds, " of this configuration")}')
        if not equals or not text:
            raise UserError(f'--grid {key} has no values; write --grid {key}=VALUE,VALUE')
        if key in grid or key in given or (key == 'seed' and 'seeds' in given):
            raise UserError(f'config.{key} has values twice, in --grid {shorten(flag)} too; name it once')
        name, kind = f'grid {key}', kinds[key]
        if kind is int and (span := _span(text)):
            grid[key] = span
        elif kind is tuple:
            grid[key] = [each if isinstance(each, tuple) else (each,) for each in _value(name, text, tuple)]
        else:
            grid[key] = [_value(name, part.strip(), kind) for part in text.split(',')]
    return grid


# --- flags: --NAME=VALUE or --NAME VALUE; of a bool also --NAME and --noNAME

# Without these, processes make the runs in turn; see `lab.launcher`
LAUNCHER: dict[str, type] = {'launcher': str, 'jobs': int, 'slurm': list}

# Without quotation marks their text is one name, which may have a comma or be a number
_NAMES = ('config.study_rows', 'config.study_columns', 'config.sweep_methods')
_READERS: dict[type, Callable[[str], Any]] = {
    str: str,
    int: int,
    float: float,
    bool: {'true': True, '1': True, 'false': False, '0': False}.__getitem__,
}


def read_flags(words: Sequence[str], kinds: Mapping[str, type]) -> tuple[dict[str, Any], list[str]]:
    """Reads flags from the words of a command line; the last one of a name counts, of a list all.

    Args:
      words: the words.
      kinds: the type of each flag by name, 'config.lr'.

    Returns:
      The values of the flags that are there, by name, and the other words.

    Raises:
      UserError: a flag lacks its value, or it has another type.
    """
    values: dict[str, Any] = {}
    others, rest = [], iter(words)
    for word in rest:
        flag, equals, text = word.partition('=')
        name = flag[1:].removeprefix('-') if flag.startswith('-') else ''
        if not equals and bool in (kinds.get(name), kinds.get(name.removeprefix('no'))):
            values[name.removeprefix('no')] = name in kinds
        elif name not in kinds:
            others.append(word)
        elif not equals and not (text := next(rest, '')):
            raise UserError(f'{flag} has no value; write {flag}=VALUE (see --help)')
        elif kinds[name] is list:
            values.setdefault(name, []).append(text)
        else:
            values[name] = _value(name, text, kinds[name])
    return values, others


def _span(text: str) -> range | None:
    """Returns the numbers that '0-4' stands for, None if a text is something else."""
    ends = re.fullmatch(r'(\d{1,10})-(\d{1,10})', text)
    return range(int(ends[1]), int(ends[2]) + 1) if ends else None


def _value(name: str, text: str, kind: type) -> Any:
    """Returns the value of a type that a text stands for; raises UserError if it stands for none."""
    if read := _READERS.get(kind):
        try:
            return read(text.lower() if kind is bool else text)
        except (KeyError, ValueError) as error:
            use = f'use {keys.TYPES[kind]} (see --help)'
            raise UserError(f'--{name}={shorten(text)} has the wrong type; {use}') from error
    if name == 'config.seeds':
        if span := _span(text):
            return tuple(span)
        if text.isdecimal() and int(text) > 1:
            several = f'for {text} seeds write --config.seeds=0-{int(text) - 1}'
            warn(f'--config.seeds={text} is the one seed {text}, as --config.seed={text}; {several}')
    if name in _NAMES and not {'"', "'"} & set(text):
        return (text,)
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):  # names without quotation marks
        value = [part.strip() for part in text.split(',')] if kind is tuple else text
    if kind is not tuple:
        return value
    return tuple(value) if isinstance(value, tuple | list) else (value,)


# --- commands beside training
#
# A tool is a module: its docstring is the help, and its `run` takes a configuration, with the name of its file and
# --workdir, or folders of runs. Arguments of `run` with a default are flags.


def typed(program: str, name: str = '') -> str:
    """Returns how a command was typed: 'semisfl plots', 'python -m semisfl_jax.plots', 'python launch.py'.

    Args:
      program: the first word of the command line.
      name: of the command.
    """
    stem = Path(program).stem
    if stem == name:
        return f'python -m semisfl_jax.{name}'
    first = {'launch': 'python launch.py', '__main__': 'python -m semisfl_jax'}.get(stem, 'semisfl')
    return f'{first} {name}'.rstrip()


def run_tool(name: str, tool: Any, argv: Sequence[str]) -> int:
    """Runs a tool, or prints its help if `argv` asks for it or for nothing.

    Args:
      name: of the command.
      tool: its module.
      argv: the command line, program first, without the name.

    Returns:
      The exit status.
    """
    program, *words = argv

    def run() -> None:
        asked = {'-h', '--help'} & {*words}
        if asked or not words:
            print(tool.__doc__.replace(f'semisfl {name}', typed(program, name)))
        if asked:
            return
        arguments = inspect.signature(tool.run).parameters
        kinds = {key: type(each.default) for key, each in arguments.items() if each.default is not each.empty}
        if 'config' in arguments:
            values, others = read_flags(words, kinds)
            command = parse([program, *others])
            tool.run(command.config, command.name, command.workdir, **values)
        else:
            values, others = read_flags(words, kinds | {'import': str})
            tool.run(_folders(others, values.pop('import', ''), [*kinds, 'import']), **values)

    try:
        return exit_status(run)
    except KeyboardInterrupt:
        print('interrupted', file=sys.stderr)
        return 130


def _folders(words: Sequence[str], module: str, flags: Sequence[str]) -> list[Path]:
    """Returns the folders that a command line names; executes the file of --import, which registers methods, before."""
    if wrong := [word for word in words if word.startswith('-')]:
        name = wrong[0].lstrip('-').partition('=')[0]
        raise UserError(f'--{name} is not a flag{did_you_mean(name, flags)} (see --help)')
    if not words:
        raise UserError('name one or more folders of runs')
    if module:
        load.run_file(file_io.check_file(module, '--import', LONGEST))
    return [file_io.expand_home(word, 'the folder') for word in words]
