"""Notebooks run from top to bottom: their cells, one after another, in a namespace of their own."""

import ast
import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys

import pytest

from semisfl_jax import algorithms
from tests.notebooks import FOLDER, cells

NOTEBOOKS = sorted(FOLDER.glob('*.ipynb'))
# Values that a test puts in the place of a notebook's own, so that it ends soon: {notebook: {name: expression}}
SMALL = {
    'quickstart': {'ROUNDS': '4'},
    'reproduce_table4': {
        'METHODS': "('SemiSFL', 'FedSwitch')",
        'ALPHAS': '(0.1,)',
        'GIVEN': "{'rounds': 2, 'seeds': (0, 1, 2)}",
    },
    'your_own_method': {'ROUNDS': '2', 'SEEDS': '(0, 1)'},
}


def small(name):
    """The code of a notebook with values of SMALL; each must stand there once, at the start of a line."""
    code = cells(name)
    for variable, value in SMALL.get(name, {}).items():
        changed = [re.subn(rf'(?m)^{variable} = .*$', f'{variable} = {value}', source) for source in code]
        assert sum(count for _, count in changed) == 1, variable
        code = [source for source, _ in changed]
    return code


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path):
    notebook = json.loads(path.read_text())
    assert (notebook['nbformat'], notebook['nbformat_minor']) == (4, 5)
    assert len({cell['id'] for cell in notebook['cells']}) == len(notebook['cells'])
    for cell in notebook['cells']:
        if cell['cell_type'] == 'code':
            assert cell['outputs'] == []
            assert cell['execution_count'] is None
            ast.parse(''.join(cell['source']))


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda path: path.stem)
def test_in_colab_a_notebook_asks_for_the_address(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.metadata, 'packages_distributions', dict)  # it is not installed there
    with pytest.raises(SystemExit, match='REPOSITORY is empty'):
        exec(cells(path.stem)[0], {})


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda path: path.stem)
def test_in_colab_a_notebook_installs_what_the_machine_has_an_accelerator_for(path, monkeypatch, tmp_path):
    """Also if an earlier try cloned the repository, but could not install it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'path', list(sys.path))
    monkeypatch.setattr(importlib.metadata, 'packages_distributions', dict)
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: name == 'jax_cuda12_plugin' or None)
    commands = []

    def start(command, check):
        commands.append([str(word) for word in command])
        if 'clone' in command:
            (tmp_path / 'semisfl_jax').mkdir()
            (tmp_path / 'semisfl_jax' / 'launch.py').touch()

    monkeypatch.setattr(subprocess, 'run', start)
    source = cells(path.stem)[0].replace("REPOSITORY = ''", "REPOSITORY = 'an address'")
    for _ in range(2):
        exec(source, {})
    clone = str(tmp_path / 'semisfl_jax')
    install = [sys.executable, '-m', 'pip', 'install', '--quiet', '-e', f'{clone}[plots]', 'jax[cuda12]']
    assert commands == [['git', 'clone', '--depth=1', 'an address', clone], install, install]
    assert sys.path[0] == clone


def run(name, monkeypatch, tmp_path):
    """Runs the notebook in `tmp_path`; returns its variables and what it displayed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(FOLDER.parent))
    displayed = []
    variables = {'__name__': '__main__', 'display': displayed.append}
    code = small(name)
    for number, source in enumerate(code):
        exec(compile(source, f'{name}, cell {number}', 'exec'), variables)
    return variables, displayed


@pytest.mark.slow
def test_quickstart(monkeypatch, tmp_path, capsys):
    variables, displayed = run('quickstart', monkeypatch, tmp_path)
    assert variables['result'].summary['rounds'] == 4
    pictures = [picture._repr_png_() for picture in displayed]
    assert len(pictures) == 6
    assert all(picture.startswith(b'\x89PNG') for picture in pictures)
    printed = capsys.readouterr().out
    assert len(re.findall(r'^\d: \d+% confident, ', printed, re.MULTILINE)) == 10
    assert re.search(r'teacher and student agree on \d+% of the test images', printed)
    assert (tmp_path / 'runs' / 'quickstart' / 'summary.json').exists()


@pytest.mark.slow
def test_reproduce_table4(monkeypatch, tmp_path, capsys):
    variables, displayed = run('reproduce_table4', monkeypatch, tmp_path)
    printed = capsys.readouterr().out
    assert 'Table IV - 2 cells' in printed
    report = (variables['folder'] / 'report.md').read_text()
    (row,) = (line for line in report.splitlines() if line.startswith('| SemiSFL | '))
    assert re.fullmatch(r'\| SemiSFL \| \d+\.\d\d ± \d+\.\d\d \(3\) \|', row), row  # digits: no number of the paper
    number = r'[+-]\d+\.\d\d'
    assert re.search(rf'\| FedSwitch \| {number} \[{number}, {number}\], (p = \S+|no test) \(3\) \|', report)
    (frame,) = displayed
    assert frame._repr_html_().startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')


@pytest.mark.slow
def test_your_own_method(monkeypatch, tmp_path, capsys):
    before = dict(algorithms.METHODS)
    try:
        _, displayed = run('your_own_method', monkeypatch, tmp_path)
    finally:
        algorithms.METHODS.clear()
        algorithms.METHODS.update(before)
    assert all(picture._repr_png_().startswith(b'\x89PNG') for picture in displayed)
    assert len(displayed) == 2
    printed = capsys.readouterr().out
    assert re.search(r'\* algorithm=mean_teacher: teacher \d+\.\d\d ± \d+\.\d\d % \(2 seeds\)', printed)
    assert re.search(
        r'difference \[algorithm=mean_teacher\] - \[algorithm=supervised_only\]: .*\(2 seeds, paired\)', printed
    )
    assert (tmp_path / 'runs' / 'your_own_method' / 'mean_teacher' / 'seed_1' / 'summary.json').exists()
