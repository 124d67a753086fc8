"""Writes a report: Markdown, the same as one self-contained HTML file, figures, and tables as CSV."""

import base64
import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from semisfl_jax.base import file_io

NOTHING = '—'  # in a table, where there is no value
_MARKUP = re.compile(r'<(?=[A-Za-z/!?])|\](?=[(\[:])|\\(?=[!-/:-@\[-`{-~])')  # a tag, a link or an escape


class Grid(NamedTuple):
    """A table."""

    header: Sequence[str]
    rows: Sequence[Sequence[Any]]  # texts, numbers, or None where there is nothing
    code: Sequence[int] = ()  # columns that hold commands or names

    def __str__(self) -> str:
        lines = [[_cell(text, False) for text in self.header], ['---'] * len(self.header)]
        lines += [[_cell(value, column in self.code) for column, value in enumerate(row)] for row in self.rows]
        return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


class Figure(NamedTuple):
    """A figure."""

    name: str  # of its files in figures/, without extension
    part: str  # of the report that it belongs to
    caption: str
    png: bytes
    svg: bytes

    def __str__(self) -> str:
        return self.at(f'figures/{self.name}.png')

    def at(self, source: str) -> str:
        """Returns the figure as Markdown, its picture taken from `source`."""
        return f'![{plain(self.caption)}]({source})\n\n{plain(self.caption)}'


Block = str | Grid | Figure  # str: Markdown


def plain(text: str) -> str:
    """Returns a text as Markdown, in which nothing is a tag or a link."""
    return _MARKUP.sub(r'\\\g<0>', text)


def heading(level: int, text: str) -> str:
    """Returns a heading of a level from 1 on."""
    return f'{"#" * level} {plain(text)}'


def warning(text: str) -> str:
    """Returns a paragraph that stands out."""
    return f'**{plain(text)}**'


def listing(items: Sequence[str]) -> str:
    """Returns a list of texts."""
    return '\n'.join(f'- {plain(item)}' for item in items)


def _cell(value: Any, code: bool) -> str:
    text = NOTHING if value is None else str(value).replace('\n', ' ')
    ticks = '`' * (1 + max(map(len, re.findall('`+', text)), default=0))
    if code and text:
        text = f'{ticks} {text} {ticks}' if '`' in text else f'`{text}`'
    return (text if code else plain(text)).replace('|', '\\|')


def write(
    folder: Path, blocks: Sequence[Block], tables: Mapping[str, tuple[Sequence[str], Sequence[Mapping[str, Any]]]]
) -> None:
    """Writes report.md, report.html, CSV files and figures/; figures of an earlier report are removed.

    Args:
      folder: folder of the report.
      blocks: the report.
      tables: columns and rows by file name; None and NaN become empty fields.
    """
    figures = [block for block in blocks if isinstance(block, Figure)]
    pictures = {f'{figure.name}.{kind}': getattr(figure, kind) for figure in figures for kind in ('png', 'svg')}
    (folder / 'figures').mkdir(parents=True, exist_ok=True)
    for name, content in pictures.items():
        file_io.write(folder / 'figures' / name, content)
    for path in (folder / 'figures').iterdir():
        if path.name not in pictures and path.suffix in ('.png', '.svg'):
            path.unlink()
    for name, (columns, rows) in tables.items():
        file_io.write(folder / name, file_io.as_csv(columns, [[row.get(key) for key in columns] for row in rows]))
    file_io.write(folder / 'report.md', markdown(blocks).encode())
    file_io.write(folder / 'report.html', page(blocks).encode())


def markdown(blocks: Sequence[Block]) -> str:
    """Returns the report as Markdown, with figures referenced by their paths."""
    return '\n\n'.join(map(str, blocks)) + '\n'


def page(blocks: Sequence[Block]) -> str:
    """Returns the report, whose first block is a heading, as one HTML file with embedded figures."""
    from markdown_it import MarkdownIt

    figures = [block for block in blocks if isinstance(block, Figure)]
    # Scaled so that text has the same size in all figures; the width is in a PNG's first chunk
    widths = iter([round(int.from_bytes(figure.png[16:20], 'big') * 0.72) for figure in figures])
    embedded = (
        block.at(f'data:image/png;base64,{base64.b64encode(block.png).decode()}')
        if isinstance(block, Figure)
        else block
        for block in blocks
    )
    body = MarkdownIt('commonmark', {'html': False}).enable('table').render(markdown([*embedded]))
    shown = r'<figure style="width: {}px">\1<figcaption>\2</figcaption></figure>'
    body = re.sub('<p>(<img .*?)</p>\n<p>(.*?)</p>', lambda found: found.expand(shown.format(next(widths))), body)
    # A line of code ends between words: browsers would also end it after a hyphen, inside --config.KEY
    body = re.sub('(?<=<code>).*?(?=</code>)', lambda code: re.sub(r'\S+', r'<span>\g<0></span>', code[0]), body)
    return _HEAD.replace('TITLE', html.escape(str(blocks[0]).removeprefix('# '))) + body


_HEAD = """\
<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>TITLE</title>
<style>
:root { color-scheme: light dark; }
body { color: light-dark(#1a1a1a, #e4e4e4); background: light-dark(#ffffff, #16181c);
  font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
h1, h2, h3 { line-height: 1.25; } h2 { margin-top: 2.2rem; }
table { border-collapse: collapse; display: block; margin: 1rem 0; overflow-x: auto;
  font-variant-numeric: tabular-nums; }
th, td { border: 1px solid light-dark(#c8c8c8, #4a4d52); padding: .3rem .6rem; text-align: left; vertical-align: top; }
th { background: light-dark(#f0f2f5, #24272c); }
code { font-size: .85em; overflow-wrap: break-word; }
code span { display: inline-block; max-width: 100%; }
p > strong { background: light-dark(#fff3cd, #3a2f0b); border-left: .3rem solid #c98a00; display: block;
  padding: .6rem .9rem; }
figure { display: inline-block; margin: 1rem 2rem 1rem 0; max-width: 100%; vertical-align: top; }
figcaption { font-size: .9em; }
img { background: light-dark(#ffffff, #d9dbde); padding: .5rem; width: 100%; box-sizing: border-box; }
</style>
"""
