"""The notebooks in colabs/ and their cells."""

import json

from tests.runs import ROOT

FOLDER = ROOT / 'colabs'


def read(name):
    return json.loads((FOLDER / f'{name}.ipynb').read_text())


def cells(name, kind='code'):
    return [''.join(cell['source']) for cell in read(name)['cells'] if cell['cell_type'] == kind]
