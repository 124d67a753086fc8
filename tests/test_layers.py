"""Imports run strictly downward: every module imports only layers that are listed before its own."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import semisfl_jax
from semisfl_jax.algorithms import METHODS

LAYERS = (
    'wording',
    'errors',
    'commands',
    'averages',
    'user_files',
    'own_files',
    'machine',
    'types',
    'rng',
    'trees',
    'losses',
    'tasks',
    'ema',
    'frequency',
    'queue',
    'sampling',
    'augment',
    'hparams',
    'models',
    'phases',
    'costs',
    'algorithms',
    'data',
    'parallel',
    'failures',
    'config',
    'training',
    'diagnostics',
    'loop',
    'runs',
    'compare',
    'plots',
    'cuts',
    'preview',
    'studies',
    'sweeps',
    'plots.__main__',
    'cuts.__main__',
    'preview.__main__',
    '__main__',
)
ROOT = Path(semisfl_jax.__file__).parent
MODULES = sorted(path for path in ROOT.rglob('*.py') if path != ROOT / '__init__.py')


def layer(path: Path) -> str:
    """The package or module right below semisfl_jax that a file belongs to. A package's command has its own layer."""
    first, *others = path.relative_to(ROOT).with_suffix('').parts
    return f'{first}.__main__' if others == ['__main__'] else first


def layers_imported(path: Path) -> set[str]:
    layers = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            layers |= {alias.name.split('.')[1] for alias in node.names if alias.name.startswith('semisfl_jax.')}
        elif isinstance(node, ast.ImportFrom) and (node.module or '').split('.')[0] == 'semisfl_jax':
            parts = node.module.split('.')
            layers |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
    return layers - {'configs'}  # read by the command, and a folder beside the package in a checkout


def test_every_layer_is_listed():
    assert {layer(path) for path in MODULES} == set(LAYERS)


@pytest.mark.parametrize('path', MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_downward(path):
    rank = LAYERS.index(layer(path))
    upward = {name for name in layers_imported(path) - {layer(path)} if LAYERS.index(name) >= rank}
    assert not upward


def modules_imported(path: Path) -> set[Path]:
    """The modules of the package that a module imports before it is used; a package's names stand in its __init__."""
    modules = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or '').split('.')[0] == 'semisfl_jax':
            folder = ROOT.joinpath(*node.module.split('.')[1:])
            for name in [alias.name for alias in node.names]:
                places = folder / f'{name}.py', folder / name / '__init__.py', folder / '__init__.py'
                modules.add(next((candidate for candidate in places if candidate.is_file()), folder.with_suffix('.py')))
    return modules - {path, ROOT / '__init__.py'}


def test_no_module_imports_itself_through_others():
    graph = {path: modules_imported(path) for path in MODULES}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert set(MODULES) <= set(order)


def test_no_method_is_told_by_its_name():
    """Outside of its own file; the RandAugments of two papers bear the names of their methods."""
    for path in MODULES:
        if layer(path) != 'algorithms':
            texts = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
            assert texts & set(METHODS) <= ({'semifl', 'fedmatch'} if layer(path) == 'augment' else set()), path


def test_methods_know_neither_data_nor_devices():
    for path in MODULES:
        if layer(path) in ('algorithms', 'phases'):
            assert not layers_imported(path) & {'data', 'training', 'loop'}
            for word in (
                'jax.devices',
                'pmap',
                'shard_map',
                'device_put',
                'Mesh',
                'lax.psum',
                'lax.all_gather',
                'axis_name',
            ):
                assert word not in path.read_text(), f'{word} in {path}'
