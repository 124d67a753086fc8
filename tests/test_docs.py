"""What the Markdown files say of the repository holds: links, keys, code. Their site has an anchor for each name."""

import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import launch
import semisfl_jax as sfl
from configs import default
from docs.methods import pictures
from semisfl_jax import __main__, algorithms, core, data, models
from semisfl_jax import config as config_lib
from semisfl_jax.algorithms import semisfl_prior
from semisfl_jax.algorithms.registry import is_ours
from semisfl_jax.config import command_line, metric_help
from semisfl_jax.core import hparams
from semisfl_jax.lab import launcher
from semisfl_jax.lab.studies import figures, measures, plan, spec, sweeps
from tests import pages
from tests.helpers import runs

ROOT = Path(launch.__file__).parent
DOCS = [path for path in sorted((ROOT / 'docs').rglob('*.md')) if not path.is_symlink()]
PAGES = [ROOT / 'README.md', *DOCS]
KEYS = config_lib.flatten(default.get_config())
OF_MANY_RUNS = {*spec.OWN_KEYS, *sweeps.OWN_KEYS}  # of studies and sweeps
GROUPS = {key.rpartition('.')[0] for key in KEYS} - {''}
# Names of a group that are code of the package as well: `data.save`, `model.bottom`
CODE = {'data': dir(data), 'model': models.SplitModel._fields}
FENCE = re.compile(r'^```(\w*)\n(.*?)^```$', re.MULTILINE | re.DOTALL)
RUN = re.compile(r'^<!-- run -->\n```python\n(.*?)^```$', re.MULTILINE | re.DOTALL)


EVIDENCE = {'results', 'reproduction', 'performance', 'client-priors', 'ledger', 'options', 'metrics', 'costs'}


def prose(page):
    """A page without its fenced blocks."""
    return FENCE.sub('', page.read_text())


def anchors(page):
    """Names of the headings of a page, as GitHub makes them."""
    titles = re.findall(r'^#+ (.*)$', prose(page), re.MULTILINE)
    return {re.sub(r'[^\w\- ]', '', title.lower()).replace(' ', '-') for title in titles}


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    links = re.findall(r'\]\(([^)\s]+)\)|<img src="([^"]+)"', prose(page))
    links = [markdown or html for markdown, html in links]
    assert links or page.name not in ('README.md', 'semisfl.md', 'ledger.md')
    for link in links:
        if re.match(r'\w+:', link):
            continue
        path, _, anchor = link.partition('#')
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        if target.suffix == '.py':
            assert bool(anchor) == bool(re.fullmatch(r'L\d+', anchor)), link
        elif anchor:
            assert anchor in anchors(target), link


def test_links_to_lines_lead_to_what_they_name():
    pattern = r'\[([^\]]*)\]\(([^)#]+\.py)#L(\d+)\)'
    links = [(page, *link) for page in PAGES for link in re.findall(pattern, prose(page))]
    assert len(links) > 20
    for page, name, path, line in links:
        assert int(line) in pages.defined(name.strip('`'), page.parent / path), f'{name}: run python -m tests.pages'


def test_tests_that_pages_name_are_there():
    named = [found for page in PAGES for found in re.findall(r'`([\w/]*test_\w+\.py)::(\w+)`', prose(page))]
    assert len(named) > 40
    for file, name in named:
        assert f'def {name}(' in (ROOT / 'tests' / file).read_text(), (file, name)


def named_keys(text):
    """Configuration keys that a text names: after `--config.`, or `GROUP.NAME` in back quotes."""
    yield from re.findall(r'--config\.([a-z][a-z_.0-9]*[a-z0-9])', text)
    for code in re.findall(r'(?<!`)`([^`\n]+)`(?!`)', text):
        for group, name in re.findall(rf'^({"|".join(GROUPS)})\.([a-z_0-9]+)', code):
            if name != 'py' and name not in CODE.get(group, ()):
                yield f'{group}.{name}'


def exists(key):
    """Whether there is a key, or a group of keys, of that name."""
    return key in KEYS or key in GROUPS or key in OF_MANY_RUNS


def assignments(text):
    """`key=value` in back quotes, of keys without a dot as well."""
    for code in re.findall(r'(?<!`)`([^`\n]+)`(?!`)', text):
        match = re.fullmatch(r'(?:--config\.|config\.)?([a-z_0-9.]+)=([^=]*)', code)
        if match:
            yield match[1]


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_keys_that_pages_name_exist(page):
    named = (*named_keys(page.read_text()), *assignments(prose(page)))
    assert [key for key in named if not exists(key)] == []


@pytest.mark.parametrize('name', pages.PAGES)
def test_what_is_made_from_the_records_is_up_to_date(name):
    assert (ROOT / name).read_text() == pages.fill(name), 'run python -m tests.pages'


def test_every_method_has_its_page_and_every_page_its_picture():
    ours = [name for name, method in algorithms.METHODS.items() if is_ours(method)]
    assert sorted(name for page in pages.METHOD_PAGES for name in pages.leads(page)) == sorted(ours)
    drawn = [re.findall(r'!\[[^\]]+\]\((\w+)\.svg\)', page.read_text()) for page in pages.METHOD_PAGES]
    assert all(drawn)
    assert sorted(name for names in drawn for name in names) == sorted(pictures.PICTURES)
    for name, picture in pictures.PICTURES.items():
        path = pictures.FOLDER / f'{name}.svg'
        assert path.read_text() == pictures.draw(picture), 'run python docs/methods/pictures.py'


def blocks(name):
    return RUN.findall((ROOT / 'docs' / name).read_text())


@pytest.fixture
def registries():
    """Puts the dictionaries back afterwards."""
    ours = algorithms.METHODS, models.ARCHITECTURES, models.DENSE_ARCHITECTURES, data.READERS, data.PARTITIONS
    ours = *ours, figures.FIGURES, measures.KINDS
    before = [dict(registry) for registry in ours]
    yield
    for registry, entries in zip(ours, before, strict=True):
        registry.clear()
        registry.update(entries)


def run_blocks(sources, small, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    namespace = {'__name__': 'docs'}
    for number, source in enumerate(sources):
        for variable, value in small.items():
            source = re.sub(rf'(?m)^{variable} = .*$', f'{variable} = {value}', source)
        exec(compile(source, f'block {number}', 'exec'), namespace)
    return namespace


def test_the_commands_of_the_pages_are_valid(monkeypatch):
    """Those that train with a configuration of the package."""
    monkeypatch.chdir(ROOT)
    blocks_of = (body for page in PAGES for _, body in FENCE.findall(page.read_text()))
    text = re.sub(r'\\\n\s*', '', '\n'.join(blocks_of))
    found = re.findall(r'^python launch\.py (--config=configs/[a-z0-9_]+\.py.*)$', text, re.MULTILINE)
    assert len(found) > 20
    for line in found:
        command = command_line.parse(['launch.py', *shlex.split(line, comments=True)], studies=True)
        config_lib.check(command.config)
        assert not command.grid or __main__._cells(command)
        launcher.read(command.jobs, [])


def test_studies_and_sweeps_of_the_pages_are_valid(registries, monkeypatch, tmp_path):
    """In one folder, with mine.py, the method of your-own.md, before folders of other tests that are on sys.path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names = {'your-own.md': ['digits_mine'], 'studies.md': ['queues', 'study_mine'], 'sweeps.md': ['sweep_mine']}
    files = {'mine': blocks('your-own.md')[0]}
    for page, of_page in names.items():
        bodies = [body for _, body in FENCE.findall((ROOT / 'docs' / page).read_text()) if 'def get_config' in body]
        files |= dict(zip(of_page, bodies, strict=True))
    for name, source in files.items():
        Path(f'{name}.py').write_text(source)
        monkeypatch.setitem(sys.modules, name, None)  # so that it is as before in the end
        del sys.modules[name]

    def parse(name):
        return command_line.parse(['launch.py', f'--config={name}'], studies=True).config

    for study, cells in ((parse('queues.py:smoke').study, 8), (parse('study_mine.py').study, 6)):
        plan.make(study, {})
        assert len(list(study.cells())) == cells
    titles = [entry.title for entry in parse('sweep_mine.py').sweep.entries]
    assert titles == ['Mean teacher', 'SemiSFL', 'Supervised-only']


@pytest.mark.slow
def test_the_python_of_the_readme_runs(monkeypatch, tmp_path):
    (source,) = re.findall(r'(?s)```python\n(.*?)```', (ROOT / 'README.md').read_text())
    monkeypatch.chdir(tmp_path)
    assert source.count('rounds=50') == 1
    namespace = {}
    exec(compile(source.replace('rounds=50', 'rounds=2'), 'README.md', 'exec'), namespace)
    assert namespace['result'].summary['rounds'] == 2
    assert namespace['metrics']['round'] == 1
    assert namespace['logits'].shape == (360, 10)


@pytest.mark.slow
def test_the_pages_on_your_own_run(registries, monkeypatch, tmp_path):
    *methods, together = blocks('your-own.md')
    sources = [*methods, *blocks('own-model.md'), *blocks('own-data.md'), together]
    namespace = run_blocks(sources, {'ROUNDS': 2}, monkeypatch, tmp_path)
    summary = namespace['result'].summary
    assert summary['rounds'] == 2
    assert (summary['algorithm'], summary['data']) == ('mean_teacher', 'stripes')
    records = runs.records(tmp_path / 'runs' / 'your_own')
    assert set(records[-1]) >= {'loss_distance', 'teacher_accuracy', 'student_accuracy'}
    assert data.load_partition(tmp_path / 'runs' / 'arrays' / 'partition.npz').settings['partition'] == 'natural'
    split = data.load_partition(tmp_path / 'runs' / 'your_own' / 'partition.npz')
    sizes = [len(rows) for rows in split.client_index]
    assert sum(sizes) == 600 - 40
    assert sizes == sorted(sizes)
    assert sizes[-1] == pytest.approx(10 * sizes[0], rel=0.2)
    # Two models of 4 bytes a number to each of 5 clients, and one back, in each of 2 rounds
    model = 3 * 3 * 1 * 16 + 2 * 16 + 3 * 3 * 16 * 32 + 2 * 32 + (3 * 3 * 32 + 1) * 64 + (64 + 1) * 4
    assert records[-1]['bytes_down'] == 2 * 5 * 2 * 4 * model
    assert records[-1]['bytes_up'] == 2 * 5 * 4 * model
    config = namespace['digits'].get_config()
    config.update(algorithm='soft_labels', rounds=2)
    metrics = namespace['sfl'].train(config).metrics
    np.testing.assert_array_equal(metrics['loss_unlabeled'], metrics['loss_soft'])
    assert np.isfinite(metrics['loss_soft']).all()
    assert np.isnan(metrics['loss_consistency']).all()  # there is none
    config = namespace['digits'].get_config()
    config.update(algorithm='flexible_prior', rounds=2)
    config.model.name = 'body_and_head'
    assert np.isfinite(namespace['sfl'].train(config).metrics['loss_consistency']).all()


def test_the_labeler_of_the_page_has_the_threshold_of_one_method_and_the_target_of_another(registries):
    """By hand. Of two clients with two images each, client 1 had class 0 three times with confidence, and class 2 once.

    pi is (1, 1, 1) / 3 and (4, 1, 2) / 7, their mean (19, 10, 13) / 42. The thresholds of client 0 are 0.9, those of
    client 1 are 0.9 times x / (2 - x) with x = 1, 1/4, 1/2: 0.9, 0.13 and 0.3.
    """
    namespace, page = {'__name__': 'docs'}, blocks('your-own.md')
    for source in (page[0], *(block for block in page if 'def flexible(' in block)):
        exec(source, namespace)
    assert 'flexible_prior' in algorithms.METHODS
    settings = hparams.HParams(batch_size=2, threshold=0.9, options=semisfl_prior.Prior())
    labeler = semisfl_prior.build_labeler(settings)._replace(confident=namespace['flexible'](0.9))
    logits = np.log([[0.5, 0.4, 0.1], [0.02, 0.96, 0.02], [0.5, 0.3, 0.2], [0.1, 0.2, 0.7]])
    weak = core.WeakViews(np.arange(2), np.ones(2), logits, None, np.ones(4, bool))
    phase = core.cross_entity.CrossEntity(None, None, settings, core.LOCAL_CLIENTS, labeler, None)
    labels = core.cross_entity.label(phase, weak, np.full(4, -1), np.array([[0.0, 0, 0], [3, 0, 1]]))
    ratios = np.repeat([[14 / 19, 14 / 10, 14 / 13], [24 / 19, 6 / 10, 12 / 13]], 2, axis=0)
    np.testing.assert_allclose(labels.logits, logits + np.log(ratios), rtol=1e-5)
    # The highest shares are 0.54, 0.97, 0.63 and 0.72
    assert labels.confident.tolist() == [False, True, False, True]
    assert labels.labels.tolist() == [3, 1, 3, 2]  # 3 is no class
    assert labels.state.tolist() == [[0, 1, 0], [3, 0, 2]]


def test_the_words_to_be_read_are_few():
    pages = [page for page in DOCS if page.stem not in EVIDENCE]
    assert (
        sum(len(re.findall(r'\S*\w\S*', page.read_text())) for page in pages) <= 27_000
    )  # the lines of a table are none


def test_the_reference_lists_the_public_names():
    text = ''.join((ROOT / 'docs' / f'{page}.md').read_text() for page in ('api', 'api-run', 'api-round'))
    assert sorted(re.findall(r'^\.\. (?:[\w:]+:: semisfl_jax\.|names:: )(\w+)$', text, re.MULTILINE)) == sorted(
        sfl.__all__
    )


@pytest.mark.slow
def test_the_site_has_an_anchor_for_each_key_metric_method_and_public_name(tmp_path):
    pytest.importorskip('sphinx_book_theme', reason="the site needs Sphinx: pip install -e '.[docs]'")
    words = ['-m', 'sphinx', '-q', '-W', '-b', 'html', ROOT / 'docs', tmp_path / 'html']
    environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
    made = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)
    assert (made.returncode, made.stderr) == (0, '')
    pages = {path.relative_to(tmp_path / 'html'): path.read_text() for path in (tmp_path / 'html').rglob('*.html')}
    ids = {str(path.with_suffix('')): {*re.findall(r' id="([^"]+)"', page)} for path, page in pages.items()}
    assert {*KEYS} <= ids['options']
    assert {key for metric in (*metric_help.COMMON, *metric_help.of_methods()) for key in metric.keys} <= ids['metrics']
    assert {*algorithms.METHODS} <= ids['methods/index']
    names = ids['api'] | ids['api-run'] | ids['api-round']
    for name in sfl.__all__:
        thing = getattr(sfl, name)
        if not inspect.ismodule(thing):
            assert f'semisfl_jax.{name}' in names
            continue
        for inner, value in vars(thing).items():
            if (getattr(value, '__module__', None) or '').startswith(thing.__name__) and not inner.startswith('_'):
                assert {f'{thing.__name__}.{inner}', f'semisfl_jax.{inner}'} & names, (name, inner)
    for path, page in pages.items():
        loads = re.findall(r'<(?:script|link|img)\b[^>]*(?:src|href)="((?:https?:)?//[^"]*)', page)
        assert {*loads} <= {'https://colab.research.google.com/assets/colab-badge.svg'}, f'{path} needs a network'
