"""Makes the API reference from the docstrings.

Needs `pip install -e '.[docs]'`.
"""

import argparse
import importlib
import inspect
import pkgutil
import sys
from pathlib import Path
from typing import get_type_hints

import jax
import ml_collections
import pdoc

import semisfl_jax

PACKAGE = semisfl_jax.__name__


def load():
    """All modules of the package, imported.

    pdoc sees only what is there, and the package loads its public names on first use.
    """
    for name in semisfl_jax.__all__:
        setattr(semisfl_jax, name, getattr(semisfl_jax, name))
    rooms = [module.name for module in pkgutil.iter_modules(semisfl_jax.__path__) if module.ispkg]
    semisfl_jax.__all__ = [*semisfl_jax.__all__, *rooms, 'verify']  # which have pages beside the public names
    return [importlib.import_module(name) for name in pdoc.extract.walk_specs([PACKAGE])]


def hidden(modules):
    """Names of modules that a function of the same name hides, like the module config.resolve."""
    for module in modules:
        parent, _, name = module.__name__.rpartition('.')
        if parent and getattr(sys.modules[parent], name) is not module:
            yield module.__name__


def document_fields(cls):
    """Makes the comments above and behind each field of a class the field's docstring."""
    docstrings = pdoc.doc_ast.walk_tree(cls).var_docstrings
    above = []
    for line in inspect.getsource(cls).splitlines():
        code, _, comment = line.strip().partition('# ')
        name, colon, _ = code.partition(':')
        if colon and name in cls.__annotations__ and (above or comment):
            docstrings[name] = ' '.join([*above, comment])
        above = [*above, comment] if comment and not code else []


def document_named_tuple(cls):
    """Annotations that pdoc can read, and no docstrings such as 'Alias for field number 0'."""
    cls.__new__.__annotations__ = get_type_hints(cls)
    cls.__new__.__doc__ = ''
    for name in cls._fields:
        getattr(cls, name).__doc__ = ''


def hide_foreign_classes(module):
    """Leaves out a name such as types.Array, which is jax.Array."""
    source = pdoc.doc_ast.walk_tree(module)
    for name, thing in vars(module).items():
        if name in source.annotations and isinstance(thing, type) and not thing.__module__.startswith(PACKAGE):
            source.var_docstrings[name] = '@private'


def main(folder: Path):
    # In signatures the names of users, instead of jax.jaxlib._jax.Array and ml_collections.config_dict.config_dict.…
    jax.Array.__qualname__ = 'Array'
    ml_collections.ConfigDict.__module__ = 'ml_collections'
    modules = load()
    for module in modules:
        hide_foreign_classes(module)
    classes = {thing for module in modules for thing in vars(module).values() if isinstance(thing, type)}
    for cls in classes:
        if cls.__module__.startswith(PACKAGE) and '__annotations__' in vars(cls):
            document_fields(cls)
            if issubclass(cls, tuple):
                document_named_tuple(cls)
    pdoc.render.configure(docformat='google', footer_text=f'{PACKAGE} {semisfl_jax.__version__}')
    pdoc.pdoc(PACKAGE, *(f'!{name}' for name in hidden(modules)), output_directory=folder)
    print(f'Open {folder / "index.html"}')


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('folder', nargs='?', type=Path, default=Path('site'), help='where to write it (default: site)')
    main(parser.parse_args().folder)
