"""Markdown and pages of reports."""

import markdown_it  # Flax brings it, by Rich
import pytest

from semisfl_jax.lab.studies import document

MARKUP = [
    '<b>x</b>',
    '<script>x</script>',
    '<!-- x',
    '[x](javascript:x)',
    '[x]: javascript:x',
    r'\[x](y)',
    r'\<b>',
    'a|b',
]


@pytest.mark.parametrize('text', MARKUP)
def test_a_text_is_shown_as_it_is_and_is_no_tag_or_link(text):
    blocks = [document.heading(1, text), document.plain(text), document.listing((text,))]
    blocks.append(document.Grid((text, 'Command'), ((text, text),), code=(1,)))
    shown = markdown_it.MarkdownIt('commonmark').enable('table').parse(document.markdown(blocks))
    of_text = [token for token in shown if token.type == 'inline']
    assert [''.join(child.content for child in token.children) for token in of_text if token.content != 'Command'] == [
        text
    ] * 6
    kinds = {token.type for token in shown} | {child.type for token in of_text for child in token.children}
    assert not any(word in kind for kind in kinds for word in ('html', 'link', 'image', 'reference'))
    assert '<b>' not in document.page(blocks)


def test_figures_of_an_earlier_report_go_and_nothing_else(tmp_path):
    (tmp_path / 'figures' / 'mine').mkdir(parents=True)
    for name in ('1-old.png', '1-old.svg', 'notes.txt'):
        (tmp_path / 'figures' / name).touch()
    new = document.Figure('1-new', '', 'new', bytes(24), b'')
    document.write(tmp_path, [new], {})
    names = sorted(path.name for path in (tmp_path / 'figures').iterdir())
    assert names == ['1-new.png', '1-new.svg', 'mine', 'notes.txt']
