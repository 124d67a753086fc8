"""The page of the papers' claims: that it is what its script makes, and mistakes in claims and results."""

import pytest

from tests.claims_toy import HEAD, claim, reproduction
from tests.one_line import assert_one_line


def test_the_page_is_what_its_script_makes():
    assert reproduction.PAGE.read_text() == reproduction.text(), 'run python docs/reproduction.py'


def toy_page(tmp_path, monkeypatch, text=None, **changes):
    """A page of one claim, with results of two rows, in `tmp_path`; returns the page's path."""
    folder = tmp_path / 'results' / 'table2-digits'
    (folder / 'figures').mkdir(parents=True)
    (folder / 'figures' / '1-values.png').touch()
    places = [f'T,{row},u,accuracy,,%' for row in 'ab']
    head = HEAD.removesuffix(',seed,value')
    cells = [f'{place},0a1b2c,"cpu (x), a machine, 2 cores"' for place in places]
    (folder / 'cells.csv').write_text('\n'.join([f'{head},commits,hardware', *cells]) + '\n')
    values = [f'{place},{seed},{seed}' for place in places for seed in range(3)]
    (folder / 'runs.csv').write_text('\n'.join([HEAD, *values]) + '\n')
    entries = claim(study='table2:digits', paper='P', where='W') | changes
    lines = [f'{key} = {value!r}' for key, value in entries.items() if value is not None]
    (tmp_path / 'claims.toml').write_text(text or '\n'.join(["intro = 'I'", '[[claim]]', *lines]))
    (tmp_path / 'page.md').write_text('as it was')
    for name, path in {'PAGE': 'page.md', 'CLAIMS': 'claims.toml', 'RESULTS': 'results'}.items():
        monkeypatch.setattr(reproduction, name, tmp_path / path)
    return tmp_path / 'page.md'


def test_the_script_writes_the_page(tmp_path, monkeypatch):
    page = toy_page(tmp_path, monkeypatch, figure='1-values', alt='values')
    assert reproduction.main(['reproduction.py']) == 0
    text = page.read_text()
    assert '| difference | u |' in text
    assert '| a − b | = +0.00 [+0.00, +0.00], p=' in text


@pytest.mark.parametrize(
    ('changes', 'words'),
    [
        ({'expect': 'abov'}, ["'x'", "expect='abov' is unknown", "did you mean 'above'?"]),
        ({'expect': None}, ["'x'", "'expect' is missing"]),
        ({'expct': 'above'}, ["'x'", "'expct' is not a key of a claim; did you mean 'expect'?"]),
        ({'unit': 'rato'}, ["unit='rato' is unknown", "did you mean 'ratio'?"]),
        ({'study': 'table2digits'}, ["study='table2digits' is not NAME:SCALE"]),
        ({'study': 'tabel2:digits'}, ["did you mean 'table2'?"]),
        ({'table': 'U'}, ["x: table2-digits has no table 'U'; use one of T"]),
        ({'rows': [['a', 'c']]}, ["x: 'T' has no row 'c'; use one of a, b"]),
        ({'rows': [['a']]}, ["'x'", 'is not a list of pairs']),
        ({'rows': None}, ["'x'", 'nothing to compare']),
        ({'columns': ['v']}, ["x: 'T' has no column 'v'; use one of u"]),
        ({'figure': 'nofig', 'alt': ''}, ["x: table2-digits has no figure 'nofig'; use one of 1-values"]),
        ({'figure': '1-values'}, ["'x'", '`alt`']),
        ({'unit': 'ratio'}, ["x: 'T' has values of 0"]),
        ({'text': "[[claim]\nname = 'x'"}, ['claims.toml is not TOML', 'line 1']),
        ({'text': "[[claim]]\nname = 'x'"}, ['claims.toml needs a text `intro`']),
    ],
)
def test_a_mistake_in_a_claim_is_one_line_and_leaves_the_page(tmp_path, monkeypatch, capsys, changes, words):
    page = toy_page(tmp_path, monkeypatch, **changes)
    assert reproduction.main(['reproduction.py']) == 2
    assert_one_line(capsys.readouterr().err, words)
    assert page.read_text() == 'as it was'


@pytest.mark.parametrize(
    ('name', 'content', 'words'),
    [
        ('cells.csv', '', ['cells.csv does not hold what a study writes']),
        ('cells.csv', None, ['cells.csv does not hold what a study writes', 'cannot be read']),
        ('runs.csv', f'{HEAD}\nT,a,u,accuracy,,%,0,much\n', ['runs.csv does not hold what a study writes', 'much']),
        ('runs.csv', f'{HEAD}\nT,c,u,accuracy,,%,0,1\n', ['runs.csv does not hold what a study writes', "'c'"]),
        ('', None, ['there are no results in', 'restore this folder']),
    ],
)
def test_results_that_are_none_are_one_line(tmp_path, monkeypatch, capsys, name, content, words):
    page = toy_page(tmp_path, monkeypatch)
    if not name:
        (tmp_path / 'results').rename(tmp_path / 'elsewhere')
    elif content is None:
        (tmp_path / 'results' / 'table2-digits' / name).unlink()
    else:
        (tmp_path / 'results' / 'table2-digits' / name).write_text(content)
    assert reproduction.main(['reproduction.py']) == 2
    assert_one_line(capsys.readouterr().err, words)
    assert page.read_text() == 'as it was'


def test_the_script_takes_no_arguments(tmp_path, monkeypatch, capsys):
    page = toy_page(tmp_path, monkeypatch)
    assert reproduction.main(['reproduction.py', 'foo']) == 2
    assert_one_line(capsys.readouterr().err, ["'foo'", 'takes no arguments'])
    assert page.read_text() == 'as it was'
