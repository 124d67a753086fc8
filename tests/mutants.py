"""Failures that the tests must notice: one change of the package at a time, and the tests that should fail under it.

    python -m tests.mutants                        all of them: each until a test fails
    python -m tests.mutants queue teacher          those whose file or name contains one of these words
    python -m tests.mutants --slow --part=1/2      slow tests, too; of the first half
    python -m tests.mutants --matrix=kills.csv     all tests that fail, of every named file; resumes where it ended
    python -m tests.mutants --read=kills.csv       what that found: the tests that are alone in noticing something

For each mutant of tests/mutants.txt a copy of the repository is changed in one place, and the named test files are run
on it. It prints which test failed, or SURVIVED; the exit status is 1 if one survived. tests/test_mutants.py checks that
the table fits the package.
"""

import argparse
import ast
import collections
import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class Mutant(NamedTuple):
    """A failure: in `file` of the package, `old`, which stands there once, becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    tests: str  # test files, core/losses for tests/core/test_losses.py, the likeliest first


def text_of(field):
    """What a field of tests/mutants.txt stands for."""
    try:
        value = ast.literal_eval(field)
    except (SyntaxError, ValueError):
        return field
    return value if isinstance(value, str) else field


def table():
    """The mutants of tests/mutants.txt."""
    mutants, (_, *groups) = [], (ROOT / 'tests' / 'mutants.txt').read_text().split('\n\n')
    for group in groups:
        head, *lines = group.splitlines()
        file, _, usual = head.partition(': ')
        for line in lines:
            name, old, new, *others = line.strip().split(' ¦ ')
            mutants.append(Mutant(name, file, text_of(old), text_of(new), *(others or [usual])))
    return mutants


MUTANTS = table()


def changed(mutant, root=ROOT):
    """The mutant's file, changed."""
    text = Path(root, 'semisfl_jax', mutant.file).read_text()
    assert text.count(mutant.old) == 1, f'{mutant.file}: {mutant.old!r} stands there {text.count(mutant.old)} times'
    return text.replace(mutant.old, mutant.new)


def name_of(file):
    """Returns the name of the test file of a module: core/losses of core/losses.py, `package` of an __init__.py."""
    room, stem = Path(file).parent, Path(file).stem
    return str(room / {'__init__': 'package', '__main__': 'main'}.get(stem, stem))


def modules():
    """Returns the files of the package that define something; others name what is defined elsewhere."""
    package = ROOT / 'semisfl_jax'
    defines = re.compile(r'^(async )?(def|class) ', re.MULTILINE)
    return [
        str(path.relative_to(package)) for path in sorted(package.rglob('*.py')) if defines.search(path.read_text())
    ]


def path_of(name):
    """Returns the test file of a name, tests/core/test_losses.py of core/losses."""
    room, _, module = name.rpartition('/')
    return Path('tests', room, f'test_{module}.py')


def failures(root, name, environment, *options):
    """Returns the tests of a file in `root` that fail. It may have slow ones alone (status 5)."""
    options = ('-p', 'no:cacheprovider', '-p', 'no:xdist', '-rfE', '--tb=no', *options)
    command = [sys.executable, '-m', 'pytest', *options, str(path_of(name))]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, env=environment, check=False)
    failed = re.findall(r'^(?:FAILED|ERROR) (?:tests/)?(.*?)(?: - |$)', result.stdout, re.MULTILINE)
    assert (result.returncode, bool(failed)) in ((0, False), (1, True), (5, False)), result.stdout + result.stderr
    return failed


def copy(root):
    """The files of this repository, new ones as well, but for results and what git ignores."""
    command = ['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard']
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split('\0')):
        if not name.startswith('results/') and Path(ROOT, name).exists():
            Path(root, name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(ROOT, name), Path(root, name), follow_symlinks=False)


def read(path):
    """Prints, of a matrix, the tests that alone kill a mutant, then how many each file kills and who survived."""
    with Path(path).open(newline='') as file:
        rows = list(csv.DictReader(file))
    killers = collections.defaultdict(list)
    for row in rows:
        killers[row['file'], row['mutant']] += row['failed'].split(';') if row['failed'] else []
    for (file, name), tests in sorted(killers.items()):
        if len(tests) == 1:
            print(f'alone: {tests[0]}: {file}: {name}')
    of_files = collections.Counter(row['tests'] for row in rows if row['failed'])
    for name in sorted({row['tests'] for row in rows}):
        print(f'{name}: kills {of_files[name]}')
    survivors = sorted(f'{file}: {name}' for (file, name), tests in killers.items() if not tests)
    print('\n'.join(f'SURVIVED {survivor}' for survivor in survivors))
    print(f'{len(killers) - len(survivors)} of {len(killers)} killed')
    return int(bool(survivors))


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('words', nargs='*')
    parser.add_argument('--slow', action='store_true')
    parser.add_argument('--part', default='1/1')
    parser.add_argument('--matrix', type=Path)
    parser.add_argument('--read', type=Path)
    given = parser.parse_args(arguments)
    if given.read:
        return read(given.read)
    part, parts = map(int, given.part.split('/'))
    chosen = [m for m in MUTANTS if not given.words or any(word in f'{m.file} {m.name}' for word in given.words)]
    chosen, survivors, done = chosen[part - 1 :: parts], 0, set()
    if given.matrix and given.matrix.exists():
        with given.matrix.open(newline='') as file:
            done = {(row['file'], row['mutant'], row['tests']) for row in csv.DictReader(file)}
    elif given.matrix:
        given.matrix.write_text('file,mutant,tests,failed\n')
    options = (*(('-m', '') if given.slow else ()), *(() if given.matrix else ('-x',)))
    with tempfile.TemporaryDirectory() as root:
        copy(root)
        # Most programs are the same under most mutants.
        paths = {'PYTHONPATH': root, 'TESTS_CACHE': f'{root}/programs', 'PYTHONDONTWRITEBYTECODE': '1'}
        for mutant in chosen:
            file, killed_by = Path(root, 'semisfl_jax', mutant.file), []
            file.write_text(changed(mutant))
            for name in mutant.tests.split():
                if (mutant.file, mutant.name, name) in done or (killed_by and not given.matrix):
                    continue
                killed_by += (failed := failures(root, name, os.environ | paths, *options))
                if given.matrix:
                    with given.matrix.open('a', newline='') as table:
                        csv.writer(table).writerow([mutant.file, mutant.name, name, ';'.join(failed)])
            file.write_text(Path(ROOT, 'semisfl_jax', mutant.file).read_text())
            survivors += not killed_by
            print(
                f'{mutant.file}: {mutant.name}:', f'killed by {killed_by[0]}' if killed_by else 'SURVIVED', flush=True
            )
    print(f'{len(chosen) - survivors} of {len(chosen)} killed')
    return int(survivors > 0)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
