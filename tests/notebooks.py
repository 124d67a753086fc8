"""Runs notebooks of colabs/ and saves their outputs; writes the repository's address into all of them and README.md.

python -m tests.notebooks [NAME ...]
"""

import re
import sys
import tempfile

import nbformat
from nbclient import NotebookClient

from tests.helpers.runs import ROOT

FOLDER = ROOT / 'colabs'
NAMES = sorted(file.stem for file in FOLDER.glob('*.ipynb'))
PAGES = [ROOT / 'README.md', *(FOLDER / f'{name}.ipynb' for name in NAMES)]
REPOSITORY = re.search("(?m)^REPOSITORY = '(.*?)'", (ROOT / 'setup.py').read_text())[1]
IN_COLAB = f'https://colab.research.google.com/github/{re.sub("https?://[^/]*/", "", REPOSITORY)}/blob/main/colabs/'


def with_address(text):
    """A page whose badges, and whose constant of that name, have the REPOSITORY of setup.py."""
    text = re.sub(r'https://colab\.research\.google\.com/github/[^)]*/colabs/', IN_COLAB, text)
    return re.sub("REPOSITORY = '.*?'", f"REPOSITORY = '{REPOSITORY}'", text)


def read(name):
    return nbformat.read(FOLDER / f'{name}.ipynb', as_version=4)


def run(notebook, folder):
    """Runs a notebook in place, in an empty folder; raises CellExecutionError if a cell fails."""
    NotebookClient(notebook, coalesce_streams=True, timeout=None, resources={'metadata': {'path': folder}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop('execution', None)  # times
        if 'outputs' in cell:  # without progress bars
            cell.outputs = [output for output in cell.outputs if output.get('name') != 'stderr']
        for output in cell.get('outputs', []):
            if 'image/png' in output.get('data', {}):
                output.data.pop('text/plain', None)  # its address in memory
    return notebook


if __name__ == '__main__':
    for page in PAGES:
        page.write_text(with_address(page.read_text()))
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as empty:
            (FOLDER / f'{name}.ipynb').write_text(nbformat.writes(run(read(name), empty)) + '\n')
