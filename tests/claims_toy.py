"""Claims and results made up for tests of docs/claims.py and docs/reproduction.py, and these two scripts themselves."""

import importlib.util
import sys

from tests.runs import ROOT

HEAD = 'table,row,column,measure,target,unit,seed,value'


def script(name):
    """A script of docs/, which is no package, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f'docs/{name}.py')
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


claims = script('claims')  # which the other one imports
reproduction = script('reproduction')


def results(tmp_path, lines, empty=()):
    folder = tmp_path / 'toy-cpu'
    folder.mkdir()
    (folder / 'runs.csv').write_text('\n'.join([HEAD, *lines]) + '\n')
    every = dict.fromkeys(line.rsplit(',', 3)[0] for line in [HEAD, *lines, *empty])
    (folder / 'cells.csv').write_text('\n'.join(every) + '\n')
    return tmp_path


def claim(**changes):
    return {'name': 'x', 'study': 'toy:cpu', 'table': 'T', 'rows': [['a', 'b']], 'expect': 'above'} | changes
