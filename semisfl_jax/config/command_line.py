"""Parses command-line arguments into a configuration; every mistake becomes a one-line error.

The last section runs the commands beside training.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError, did_you_mean, exit_status, shorten
from semisfl_jax.config import keys, load

LONGEST = 2**24  # bytes of a Python file
STUDY, SWEEP = 'study', 'sweep'  # mark configurations of many runs; not command-line keys


class Command(NamedTuple):
    """The user's request."""

    config: ConfigDict  # locked
    name: str  # of the configuration file, without .py
    workdir: str  # '' means the default
    given: dict[str, Any]  # dotted keys overridden on the command line -> values


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
    values, words = read_flags(argv[1:], {'config': str, 'workdir': str})
    workdir = values.get('workdir', '')
    if not values.get('config'):
        raise UserError(f'--config is missing; write {typed(argv[0])} --config=digits, for example (see --help)')
    file, colon, settings = values['config'].partition(':')
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
    config.update_from_flattened_dict(given)
    for kind in (STUDY, SWEEP):
        if kind in config and not studies:
            raise UserError(f'{path.stem} is a {kind} of many runs; give one run')
    if not {STUDY, SWEEP} & set(config):  # their runs have methods of their own
        load.apply_setting(config, given=given.keys())
    return Command(config.lock(), path.stem, workdir, given)


# --- flags: --NAME=VALUE or --NAME VALUE; of a bool also --NAME and --noNAME

# Without quotation marks their text is one name, which may have a comma or be a number
_NAMES = ('config.study_rows', 'config.study_columns', 'config.sweep_methods')
_READERS: dict[type, Callable[[str], Any]] = {
    str: str,
    int: int,
    float: float,
    bool: {'true': True, '1': True, 'false': False, '0': False}.__getitem__,
}


def read_flags(words: Sequence[str], kinds: Mapping[str, type]) -> tuple[dict[str, Any], list[str]]:
    """Reads flags from the words of a command line; the last one of a name counts.

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
        else:
            values[name] = _value(name, text, kinds[name])
    return values, others


def _value(name: str, text: str, kind: type) -> Any:
    """Returns the value of a type that a text stands for; raises UserError if it stands for none."""
    if read := _READERS.get(kind):
        try:
            return read(text.lower() if kind is bool else text)
        except (KeyError, ValueError) as error:
            use = f'use {keys.TYPES[kind]} (see --help)'
            raise UserError(f'--{name}={shorten(text)} has the wrong type; {use}') from error
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
