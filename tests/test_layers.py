"""The rings of the package, from the inside out: every module imports only from its own ring and those before it."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import semisfl_jax

RINGS = (
    ('base', 'configs'),  # configs: where the folder of that name is; imports nothing
    ('core',),
    ('models', 'augment', 'tasks', 'costs', 'data'),
    ('algorithms',),
    ('config', 'training', 'runs', 'verify'),
    ('lab',),
    ('__main__', 'compare', 'cuts', 'plots', 'preview'),
)
ROOT = Path(semisfl_jax.__file__).parent
RING = {room: index for index, ring in enumerate(RINGS) for room in ring}


def used(code):
    """Names of the package that a module uses: what it imports, and attributes of the package."""
    tree, packages, found = ast.parse(code), set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            packages |= {alias.asname or alias.name for alias in node.names if alias.name == 'semisfl_jax'}
        elif isinstance(node, ast.ImportFrom):
            names = [f'{node.module}.{alias.name}' for alias in node.names]
        else:
            continue
        found |= {parts[1] for name in names if (parts := name.split('.'))[0] == 'semisfl_jax' and len(parts) > 1}
    attributes = (
        node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    )
    return found | {node.attr for node in attributes if node.value.id in packages and not node.attr.startswith('__')}


def rooms():
    """{room: names of the package that it uses}."""
    found = {}
    for path in sorted(ROOT.rglob('*.py')):
        if path != ROOT / '__init__.py':
            room = path.relative_to(ROOT).parts[0].removesuffix('.py')
            found.setdefault(room, set()).update(used(path.read_text()))
    return found


def test_rings_import_inward_and_rooms_not_in_a_circle():
    found = {room: names - {room} for room, names in rooms().items()}
    assert found.keys() == RING.keys(), 'every room is in a ring'
    found = {room: names & RING.keys() for room, names in found.items()}
    assert {(a, b) for a, names in found.items() for b in names if RING[b] > RING[a]} == set()
    TopologicalSorter(found).prepare()


PUBLIC = {'base', 'lab', *semisfl_jax.__all__}


@pytest.mark.parametrize('path', sorted((ROOT / 'lab').rglob('*.py')), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_laboratory_uses_public_names_alone(path):
    assert used(path.read_text()) - PUBLIC == set()


@pytest.mark.parametrize(
    'code',
    [
        'import semisfl_jax as sfl\nsfl.training.loop',
        'import semisfl_jax\nsemisfl_jax.core',
        'import semisfl_jax.training.loop',
        'from semisfl_jax import config as sfl',
        'def f():\n    from semisfl_jax.core.types import Array',
    ],
)
def test_names_that_are_not_public_are_found(code):
    assert len(used(code) - PUBLIC) == 1
