"""Notebooks run from top to bottom: their cells, one after another, in a namespace of their own."""

import json
import re

import pytest

from semisfl_jax import algorithms
from tests.helpers.runs import ROOT

FOLDER = ROOT / 'colabs'
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


def test_every_notebook_is_run():
    assert {file.stem for file in FOLDER.glob('*.ipynb')} == set(SMALL)


def cells(name):
    notebook = json.loads((FOLDER / f'{name}.ipynb').read_text())
    return [''.join(cell['source']) for cell in notebook['cells'] if cell['cell_type'] == 'code']


def run(name, monkeypatch, tmp_path):
    """Runs the notebook in `tmp_path`; returns its variables and what it displayed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(FOLDER.parent))
    displayed = []
    variables = {'__name__': '__main__', 'display': displayed.append}
    code = '\n'.join(cells(name))
    for variable, value in SMALL[name].items():
        code, count = re.subn(rf'(?m)^{variable} = .*$', f'{variable} = {value}', code)
        assert count == 1, variable
    exec(code, variables)
    return variables, displayed


@pytest.mark.slow
def test_the_quickstart_trains_and_draws(monkeypatch, tmp_path, capsys):
    variables, displayed = run('quickstart', monkeypatch, tmp_path)
    assert variables['trained'].round == 4
    assert [picture._repr_png_()[:4] for picture in displayed] == 6 * [b'\x89PNG']
    assert len(re.findall(r'(?m)^\d: \d+% confident(?:, \d+% of these right)?$', capsys.readouterr().out)) == 10


@pytest.mark.slow
def test_table_4_of_the_notebook_has_its_row(monkeypatch, tmp_path):
    variables, displayed = run('reproduce_table4', monkeypatch, tmp_path)
    report = (variables['folder'] / 'report.md').read_text()
    (row,) = (line for line in report.splitlines() if line.startswith('| SemiSFL | '))
    assert re.fullmatch(r'\| SemiSFL \| \d+\.\d\d ± \d+\.\d\d \(3\) \|', row), row  # digits: no number of the paper
    (frame,) = displayed
    assert frame._repr_html_().startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')


@pytest.mark.slow
def test_the_method_of_the_notebook_trains(monkeypatch, tmp_path, capsys):
    before = dict(algorithms.METHODS)
    try:
        _, displayed = run('your_own_method', monkeypatch, tmp_path)
    finally:
        algorithms.METHODS.clear()
        algorithms.METHODS.update(before)
    assert [picture._repr_png_()[:4] for picture in displayed] == 2 * [b'\x89PNG']
    printed = capsys.readouterr().out
    assert re.search(r'Mean teacher +2 +teacher +\d+\.\d\d ± \d+\.\d\d \[', printed)


def test_the_notebook_has_the_method_of_the_page():
    block = re.search(r'(?ms)^<!-- run -->\n```python\n(.*?)^```$', (ROOT / 'docs/your-own.md').read_text())
    assert block[1].strip() in cells('your_own_method')
