"""The rings of the package, from the inside out: every module imports only from its own ring and those before it."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import semisfl_jax

RINGS = (
    ('core',),
    ('models', 'augment', 'tasks', 'costs', 'data'),
    ('algorithms',),
    ('config', 'training', 'runs', '__main__'),
    ('compare', 'studies', 'plots', 'cuts', 'preview'),
)
# The command also starts studies and sweeps
OUTWARD = {('__main__', 'studies')}
ROOT = Path(semisfl_jax.__file__).parent
RING = {room: index for index, ring in enumerate(RINGS) for room in ring}


def imports():
    """{room: rooms that it imports}."""
    found = {}
    for path in sorted(ROOT.rglob('*.py')):
        if path == ROOT / '__init__.py':
            continue
        rooms = found.setdefault(path.relative_to(ROOT).parts[0].removesuffix('.py'), set())
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f'{node.module}.{alias.name}' for alias in node.names]
            else:
                continue
            rooms |= {parts[1] for name in names if (parts := name.split('.'))[0] == 'semisfl_jax' and len(parts) > 1}
    return {name: rooms - {'configs'} for name, rooms in found.items()}  # configs: of the command, a folder of its own


def test_rings_import_inward_and_rooms_not_in_a_circle():
    found = {a: {b for b in rooms if b != a and (a, b) not in OUTWARD} for a, rooms in imports().items()}
    assert found.keys() == RING.keys(), 'every room is in a ring'
    assert {(a, b) for a, rooms in found.items() for b in rooms if RING.get(b, 0) > RING[a]} == set()
    TopologicalSorter(found).prepare()
