"""Makes the site of this folder: `sphinx-build -W -b html docs docs/_build/html`, after `pip install -e '.[docs]'`.

Nothing on its pages comes from the network: formulas are MathML.
"""

import inspect
import os
import re
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import sphinx.pycode.parser
from docutils import nodes
from docutils.statemachine import StringList
from math_core import LatexToMathML
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.pycode import ModuleAnalyzer
from sphinx.transforms import SphinxTransform
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import stringify_annotation

import semisfl_jax

DOCS = Path(__file__).parent
ROOT = DOCS.parent
REPOSITORY = re.search(r"REPOSITORY = '(.*?)'", (ROOT / 'setup.py').read_text(encoding='utf-8'))[1]

project, release, author = 'semisfl_jax', semisfl_jax.__version__, 'The semisfl_jax developers'
extensions = ['myst_nb', 'sphinx.ext.autodoc']
exclude_patterns = ['_build', 'docker', '**.ipynb_checkpoints']
nb_execution_mode = 'off'  # notebooks are stored with their outputs
nb_render_markdown_format = 'gfm'  # of outputs, which have tables
myst_enable_extensions = ['dollarmath', 'html_image']
myst_heading_anchors = 4
autodoc_member_order = 'bysource'
autodoc_default_options = {'members': True, 'undoc-members': True}
autodoc_typehints_format = 'short'
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
add_module_names = False
highlight_language = 'none'  # where no language is named
html_math_renderer = 'mathml'
html_theme = 'sphinx_book_theme'
html_title = 'semisfl_jax'
html_theme_options = {
    'repository_url': REPOSITORY,
    'repository_branch': 'main',
    'repository_provider': 'github',
    'use_repository_button': True,
    'use_download_button': False,
    'show_toc_level': 2,
    'navbar_persistent': [],
    'footer_content_items': [],
}
html_copy_source = False
html_static_path = ['_static']
html_css_files = ['site.css']

# Comments above and behind the fields of a class say what they are, like those that Sphinx wants with a colon
sphinx.pycode.parser.comment_re = re.compile(r'^\s*#:? ?(?!noqa|type:|ty:)(.*)\r?\n?$')


# Links lead to files, as on GitHub: here to their pages, or to the repository

PAGES = {path.resolve(): path for path in [*DOCS.rglob('*.md'), *DOCS.glob('colabs/*.ipynb')]}
LINK = re.compile(r'(?<=\]\()(?!\w+:|#)([^)#\s]+)(?=(#[\w-]+)?\))')


def lead(app, docname, source):
    """Rewrites the links of a page (`source-read`)."""
    folder = Path(app.env.doc2path(docname)).resolve().parent

    def target(link):
        path = Path(os.path.normpath(folder / link[1]))
        page = PAGES.get(path)
        if page == path:
            return f'/{page.relative_to(DOCS)}'
        if page and not link[2]:  # through a symbolic link, Sphinx finds no file and no anchor, but a page by its name
            return f'/{page.relative_to(DOCS).with_suffix("")}'
        if path.suffix in ('.png', '.svg') or not path.exists():
            return link[1]
        return f'{REPOSITORY}/{"tree" if path.is_dir() else "blob"}/main/{path.relative_to(ROOT)}'

    source[0] = re.sub(r'\[([\w-]+)\.md\](?=\()', r'[\1]', LINK.sub(target, source[0]))  # [costs.md](costs.md): costs


# Anchors

TABLES = {'options': ('confval', 0), 'metrics': ('metric', 0), 'methods/index': ('method', 1)}  # the columns with names


class Anchors(SphinxTransform):
    """Gives keys, metrics and methods addresses that search knows."""

    default_priority = 400

    def apply(self, **kwargs):
        """Changes the tables of a page."""
        kind, column = TABLES.get(self.env.docname, ('', 0))
        for row in [row for body in self.document.findall(nodes.tbody) for row in body if kind]:
            for name in [*row[column].findall(nodes.literal)]:
                text = name.astext()
                if text in self.document.ids:
                    continue
                link = nodes.reference('', '', name.deepcopy(), refuri=f'#{text}', ids=[text], internal=True)
                self.document.ids[text] = link
                name.replace_self(link)
                self.env.get_domain('std').note_object(kind, text, text, location=row)


# Formulas

CONVERT = LatexToMathML()


def formula(self, node):
    """Writes a formula as MathML."""
    block = isinstance(node, nodes.math_block)
    made = CONVERT.convert_with_local_state(node.astext(), displaystyle=block)
    self.body.append(f'<div class="formula">{made}</div>\n' if block else made)
    raise nodes.SkipNode


# The API


class Names(SphinxDirective):
    """`.. names:: data`: all public names of a module of the package but those that `sfl` has itself."""

    required_arguments = 1

    def run(self):
        """Returns what autodoc makes of them."""
        module = getattr(semisfl_jax, self.arguments[0])
        lines = [f'.. automodule:: {module.__name__}', '']
        if hasattr(module, '__path__'):  # a folder has what its __init__.py imports from it
            lines.insert(1, '   :no-members:')
            found = {name: thing for name, thing in vars(module).items() if not name.startswith('_')}
            parts = [thing.__name__ for thing in found.values() if isinstance(thing, ModuleType)]
            comments = [ModuleAnalyzer.for_module(part).find_attr_docs() for part in parts if module.__name__ in part]
            for name, thing in found.items():
                if inspect.isclass(thing) or inspect.isroutine(thing):
                    if thing.__module__.startswith(module.__name__) and getattr(semisfl_jax, name, None) is not thing:
                        kind = 'class' if inspect.isclass(thing) else 'function'
                        lines += [f'.. auto{kind}:: {module.__name__}.{name}', '']
                elif name.isupper():
                    comment = next((known['', name] for known in comments if ('', name) in known), [])
                    lines += [f'.. py:data:: {name}', '', *(f'   {line}' for line in plain(comment)), '']
        node = nodes.Element()
        self.state.nested_parse(StringList(lines, source=module.__name__), self.content_offset, node)
        return node.children


def plain(lines):
    """Turns a docstring into reStructuredText: `code` and what is indented after a blank line are code."""
    found, base, literal = [], 0, False
    for before, line in pairwise(['', *lines]):
        indent = len(line) - len(line.lstrip())
        if line.strip():
            if indent == 0:
                base = 2 if re.fullmatch(r'(Args|Returns|Raises|Yields):', line) else 0
            if not literal and indent > base and not before.strip():
                found += [' ' * base + '::', '']
            literal = indent > base and (literal or not before.strip())
        if not literal:
            parts = re.split(r'(`[^`]+`)', line)
            line = ''.join(f'`{part}`' if part[:1] == '`' else re.sub(r'([*|\\]|_\b)', r'\\\1', part) for part in parts)
        found.append(line)
    return found


def write_docstring(app, what, name, obj, options, lines):
    """Makes a docstring what Sphinx reads (`autodoc-process-docstring`)."""
    lines[:] = [] if lines[:1] and lines[0].startswith('Alias for field number') else plain(lines)
    if what not in ('attribute', 'data'):
        lines[:] = GoogleDocstring(lines, Config(napoleon_use_ivar=True), app, what, name, obj, options).lines()


def shorten(app, what, name, obj, options, signature, returned):
    """Writes the type of callbacks by its name (`autodoc-process-signature`)."""
    long, short = stringify_annotation(semisfl_jax.events.Callback, 'smart'), '~semisfl_jax.training.events.Callback'
    return tuple(text and text.replace(long, short) for text in (signature, returned))


def skip(app, what, name, obj, skipped, options):
    """Leaves out of modules what is a name of `sfl` (`autodoc-skip-member`)."""
    return True if name in semisfl_jax.__all__ and getattr(semisfl_jax, name) is obj else None


def setup(app):
    """Registers what is above."""
    for kind in ('metric', 'method'):
        app.add_object_type(kind, kind)
    app.connect('source-read', lead)
    app.add_transform(Anchors)
    app.add_html_math_renderer('mathml', (formula, None), (formula, None))
    app.add_directive('names', Names)
    app.connect('autodoc-process-docstring', write_docstring)
    app.connect('autodoc-process-signature', shorten)
    app.connect('autodoc-skip-member', skip)
