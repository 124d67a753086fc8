"""The API reference: docs/api.py makes a page of every module, with the docstring of every public name."""

import html
import inspect
import os
import re
import subprocess
import sys
from types import ModuleType

import pytest

import semisfl_jax as sfl
from tests.runs import ROOT

pytestmark = pytest.mark.slow
PUBLIC = {name: getattr(sfl, name) for name in sfl.__all__ if name != '__version__'}
MODULES = [name for name, thing in PUBLIC.items() if isinstance(thing, ModuleType)]
NAMES = [name for name in PUBLIC if name not in MODULES]


@pytest.fixture(scope='module')
def site(tmp_path_factory):
    pytest.importorskip('pdoc', reason="the API reference needs pdoc: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp('site')
    command = [sys.executable, ROOT / 'docs' / 'api.py', folder]
    environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
    made = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    assert (made.returncode, made.stderr) == (0, '')
    assert made.stdout == f'Open {folder / "index.html"}\n'
    return folder


def words(text):
    return ' '.join(text.replace('`', '').split())


def text_of(page):
    """What a reader sees of a page, without the sources that can be unfolded."""
    source = re.sub(r'(?s)<div class="pdoc-code codehilite">.*?</div>', '', page.read_text(encoding='utf-8'))
    return words(html.unescape(re.sub(r'<[^>]+>', '', source)))


def test_every_module_has_a_page(site):
    assert (site / 'index.html').exists()
    for name in MODULES:
        text = text_of(site / f'{PUBLIC[name].__name__.replace(".", "/")}.html')
        assert words(PUBLIC[name].__doc__.split('\n\n')[0]) in text, name


def test_every_public_name_is_documented(site):
    assert set(NAMES) >= {'get_config', 'build', 'register', 'Method', 'option', 'UserError'}
    text = text_of(site / 'semisfl_jax.html')
    for name in NAMES:
        docstring = inspect.getdoc(PUBLIC[name])
        assert docstring, name
        assert words(docstring).replace('Args:', 'Arguments:') in text, name


def test_fields_have_their_comments_and_annotations_are_readable(site):
    assert 'keys: jax.Array [Q, P] unit rows' in text_of(site / 'semisfl_jax/core/queue.html')
    for page in site.rglob('*.html'):
        assert not re.search(r'ForwardRef|Alias for field|jaxlib\._jax|0x[0-9a-f]{8}', text_of(page)), page
