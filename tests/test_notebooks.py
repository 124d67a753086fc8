"""Notebooks run from top to bottom, and what they have saved is what they do."""

import os
import re

import pytest

from tests.helpers.runs import ROOT

notebooks = pytest.importorskip('tests.notebooks', reason="notebooks need nbclient: pip install -e '.[test]'")

# Values that a test puts in the place of a notebook's own, so that it ends soon: {notebook: {name: expression}}
SMALL = {
    'own_data': {'ROUNDS': '5'},
    'quickstart': {'ROUNDS': '4'},
    'reproduce_table4': {
        'METHODS': "('SemiSFL', 'FedSwitch')",
        'ALPHAS': '(0.1,)',
        'GIVEN': "{'rounds': 2, 'seeds': (0, 1, 2)}",
    },
    'your_own_method': {'ROUNDS': '2', 'SEEDS': '(0, 1)'},
}


def cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == 'code']


def texts(notebook):
    """What the cells print or return as text."""
    outputs = [output for cell in cells(notebook) for output in cell.outputs]
    return '\n'.join(output.get('text') or output['data'].get('text/plain', '') for output in outputs)


def kinds(notebook):
    """Kinds of the outputs of every cell, such as 'image/png'."""
    return [{kind for output in cell.outputs for kind in output.get('data', {'text': 0})} for cell in cells(notebook)]


def run(name, folder):
    """Runs a notebook with its SMALL values in a folder."""
    notebook = notebooks.read(name)
    for variable, value in SMALL[name].items():
        changed = 0
        for cell in cells(notebook):
            cell.source, count = re.subn(rf'(?m)^{variable} = .*?(?=  #|$)', f'{variable} = {value}', cell.source)
            changed += count
        assert changed == 1, variable
    return notebooks.run(notebook, folder)


def test_every_notebook_is_run():
    assert set(notebooks.NAMES) == set(SMALL)


@pytest.mark.parametrize('page', notebooks.PAGES, ids=lambda page: page.name)
def test_the_address_of_the_repository_is_that_of_setup(page):
    text = page.read_text()
    assert text == notebooks.with_address(text), 'run python -m tests.notebooks'
    names = [page.stem] if page.suffix == '.ipynb' else notebooks.NAMES
    assert sorted(re.findall(r'blob/main/colabs/(\w+)\.ipynb\)', text)) == names  # the badges


@pytest.mark.parametrize('name', notebooks.NAMES)
def test_saved_outputs_are_of_the_cells_in_their_order(name):
    notebook = notebooks.read(name)
    assert [cell.execution_count for cell in cells(notebook)] == [*range(1, len(cells(notebook)) + 1)]
    assert sum(len(output.get('text', '').splitlines()) for cell in cells(notebook) for output in cell.outputs) < 40
    assert not re.search(r'/(home|root|tmp|work)/', texts(notebook))
    assert re.search(r'(?m)^\*\*.*on 2 CPU cores: \d+ minutes?\.\*\*', notebook.cells[0].source, re.IGNORECASE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'shown'),
    {
        'own_data': 'largest difference of the logits: 0.0',
        'quickstart': r'teacher and student agree on \d+% of the test images',
        'reproduce_table4': '2 cells',
        'your_own_method': r'Mean teacher +2 +teacher +\d+\.\d\d ± \d+\.\d\d \[',
    }.items(),
)
def test_a_notebook_runs_and_shows_what_it_has_saved(name, shown, monkeypatch, tmp_path):
    monkeypatch.setenv('PYTHONPATH', os.pathsep.join(filter(None, [str(ROOT), os.environ.get('PYTHONPATH')])))
    notebook = run(name, tmp_path)
    assert kinds(notebook) == kinds(notebooks.read(name))
    assert re.search(shown, texts(notebook))


def test_the_notebook_has_the_method_of_the_page():
    block = re.search(r'(?ms)^<!-- run -->\n```python\n(.*?)^```$', (ROOT / 'docs/your-own.md').read_text())
    assert block[1].strip() in [cell.source for cell in cells(notebooks.read('your_own_method'))]
