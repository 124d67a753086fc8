"""Draws the pictures of the methods, docs/methods/NAME.svg, from what PICTURES says of each.

    python docs/methods/pictures.py

A picture has a card of the server above a card of the clients, and between them what travels. It is drawn at 400
pixels, so that its text can be read on a telephone, and follows the dark mode of the reader's system.
"""

import textwrap
from html import escape
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parent

WIDTH, MARGIN, PAD, LINE, ROW = 400, 10, 12, 17, 27
STYLE = """
    text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: #1f2328 }
    .title { font-weight: 700 }
    .when { fill: #59636e }
    .page { fill: #ffffff }
    .card { fill: #f4f6f8; stroke: #818b98 }
    .trained { fill: #bfdcff; stroke: #0550ae }
    .follows { fill: none; stroke: #0550ae; stroke-dasharray: 4 3 }
    .used { fill: none; stroke: #818b98 }
    .store { fill: #ffe3b8; stroke: #9a6700 }
    .image { fill: #ffffff; stroke: #59636e }
    .label { fill: #1a7f37 }
    .disc { fill: #59636e }
    .number { fill: #ffffff; font-weight: 700; text-anchor: middle }
    .arrow { stroke: #59636e; stroke-width: 2; fill: none }
    .head { fill: #59636e }
    .middle { text-anchor: middle }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 }
      .when { fill: #a9b4c0 }
      .page { fill: #0d1117 }
      .card { fill: #1a212b; stroke: #6e7681 }
      .trained { fill: #1f4a86; stroke: #79b8ff }
      .follows { stroke: #79b8ff }
      .used { stroke: #8b949e }
      .store { fill: #5c4413; stroke: #e3b341 }
      .image { fill: #0d1117; stroke: #a9b4c0 }
      .label { fill: #3fb950 }
      .disc, .head { fill: #a9b4c0 }
      .number { fill: #0d1117 }
      .arrow { stroke: #a9b4c0 }
    }
"""
LEGEND = {'trained': 'trained', 'follows': 'average', 'used': 'only used', 'store': 'kept'}


class Images(NamedTuple):
    """Images that a side holds, with or without labels."""

    text: str
    labeled: bool = False


class Model(NamedTuple):
    """A model, or a part of one."""

    text: str
    pieces: str  # separated by '|'
    kind: str = 'trained'  # a key of LEGEND, the same for all pieces


class Side(NamedTuple):
    """The server, or the clients."""

    holds: tuple[Images | Model, ...]
    does: dict[int, str]  # by number, in the order of the round


class Picture(NamedTuple):
    """A method. `down` and `up` say what travels, and when."""

    title: str
    server: Side
    clients: Side
    down: dict[str, str]
    up: dict[str, str]


LABELS, UNLABELED = Images('a few labeled images', True), Images('unlabeled images')
BOTH = Images('labeled images', True), UNLABELED
START, STEP, END = 'at the start', 'every iteration', 'at the end'
WHOLE = 'whole model'
FEATURES = {'features of student and teacher': STEP, 'bottom': END}
BOTTOMS = {'bottoms of student, teacher': START, 'gradients of features': STEP}

SEMISFL = Picture(
    'SemiSFL',
    Side(
        (
            LABELS,
            Model('student', 'bottom|top|head'),
            Model('teacher', 'bottom|top|head', 'follows'),
            Model('queue', 'keys of the teacher, with labels', 'store'),
        ),
        {
            1: 'K_s steps on labels: cross-entropy, contrast. The teacher follows and fills the queue.',
            3: 'The teacher labels. Consistency trains top and bottoms, clustering head and bottoms.',
            5: 'Averages the bottoms. K_s may fall.',
        },
    ),
    Side(
        (UNLABELED, Model('student', 'bottom'), Model('teacher', 'bottom', 'used')),
        {
            2: 'In each of K_u iterations: a strong view through its bottom, a weak one through the teacher’s.',
            4: 'A step of its bottom with these gradients.',
        },
    ),
    BOTTOMS,
    FEATURES,
)

PICTURES = {
    'semisfl': SEMISFL,
    'semisfl_prior': SEMISFL._replace(
        title='SemiSFL + client priors',
        server=Side(
            (*SEMISFL.server.holds, Model('counts', 'labels by client and class', 'store')),
            SEMISFL.server.does
            | {
                3: 'The teacher labels; its logits shift toward classes that this client was given more often than the '
                'others were. Images without a confident label have no clustering.',
                5: 'Averages the bottoms. K_s falls only as far as pseudo-labels cover the images.',
            },
        ),
    ),
    'supervised_only': Picture(
        'Supervised-only',
        Side(
            (LABELS, Model('student', WHOLE), Model('its average', WHOLE, 'follows')),
            {1: 'K_s steps of cross-entropy on labels.'},
        ),
        Side((UNLABELED,), {2: 'Takes no part.'}),
        {},
        {},
    ),
    'fedswitch': Picture(
        'FedSwitch',
        Side(
            (LABELS, Model('student', WHOLE), Model('teacher', WHOLE, 'follows')),
            {
                1: 'K_s steps on labels; the teacher follows.',
                4: 'Averages the students, discards their teachers.',
            },
        ),
        Side(
            (UNLABELED, Model('student', WHOLE), Model('teacher', WHOLE, 'follows')),
            {
                2: 'Are the student’s confident labels spread evenly over the classes? Then the student labels, '
                'otherwise the teacher.',
                3: 'K_u steps of FixMatch; the teacher follows.',
            },
        ),
        {'student': START, 'teacher': 'if it labels'},
        {'which of them labels': START, 'student': END},
    ),
    'fedswitch_sl': Picture(
        'FedSwitch-SL',
        Side(
            (LABELS, Model('student', 'bottom|top'), Model('teacher', 'bottom|top', 'follows')),
            {
                1: 'K_s steps on labels; the teacher follows.',
                3: 'Labels by the student if the client’s labels so far are spread evenly, else by the teacher. '
                'Consistency trains top and bottoms.',
                5: 'Averages the bottoms.',
            },
        ),
        SEMISFL.clients._replace(
            does=SEMISFL.clients.does
            | {
                2: 'In each of K_u iterations: a strong view through its bottom, a weak view through that of the model '
                'that labels.'
            }
        ),
        BOTTOMS,
        {'features of both views': STEP, 'bottom': END},
    ),
    'semifl': Picture(
        'SemiFL',
        Side(
            (LABELS, Model('model', WHOLE), Model('momentum', 'of its steps to the average', 'store')),
            {
                3: 'A momentum step toward the models’ average.',
                4: 'K_s steps of cross-entropy on labels. Then BatchNorm’s statistics anew, over all images.',
            },
        ),
        Side(
            (UNLABELED, Model('model', WHOLE)),
            {
                1: 'Labels all its images once, with the model that came. FIX are the confident ones; without any, it '
                'sits out.',
                2: 'Trains on strong views of FIX, and on mixtures of FIX with images drawn from all.',
            },
        ),
        {'model': START},
        {'parameters': END},
    ),
    'fedmatch': Picture(
        'FedMatch: model = σ + ψ',
        Side(
            (
                LABELS,
                Model('from labels', 'σ'),
                Model('average', 'ψ', 'follows'),
                Model('last upload', 'ψ of every client', 'store'),
            ),
            {
                1: 'K_s steps of σ on labels, with ψ fixed.',
                4: 'Averages ψ. Finds each client’s helpers: models that predict alike on one noise image.',
            },
        ),
        Side(
            (UNLABELED, Model('from images', 'ψ'), Model('fixed', 'σ|helpers', 'used')),
            {
                2: 'Labels by vote of its model and helpers.',
                3: 'Steps of ψ: agree with the vote, predict like the helpers, stay near σ, be sparse.',
            },
        ),
        {'σ and ψ': START, 'ψ of 2 helpers': 'every tenth round'},
        {'ψ': END},
    ),
    'fedavg': Picture(
        'FedAvg and FedProx',
        Side(
            (Images('labeled images, or none', True), Model('model', WHOLE)),
            {
                1: 'K_s steps of cross-entropy, if it has labels.',
                3: 'Averages the models, weighted by images.',
            },
        ),
        Side(
            (Images('images, a few or none of them labeled'), Model('model', WHOLE)),
            {
                2: 'K_u steps on local.objective: labels alone, FixMatch, UDA, pseudo-labels or mean teacher. FedProx '
                'also pulls it back to the model that came.',
            },
        ),
        {'model': START},
        {'model': END},
    ),
    'fed_shvr': Picture(
        'Fed-SHVR',
        Side(
            (Model('model', WHOLE, 'follows'), Model('sum of', 'mean gradients of clients', 'store')),
            {3: 'Averages updates per step: a client counts by its images, not by its steps.'},
        ),
        Side(
            (*BOTH, Model('model', WHOLE), Model('last round’s', 'mean gradient', 'store')),
            {
                1: 'Labels its unlabeled images once, softly: predictions of the model that came, sharpened.',
                2: 'Steps of SGD on both kinds of images, with each gradient corrected by how its last ones differed '
                'from everybody’s.',
            },
        ),
        {'model': START, 'sum of gradients': 'if some were absent'},
        {'model': END},
    ),
    'feddure': Picture(
        'FedDure',
        Side((Model('model θ', WHOLE, 'follows'),), {4: 'Averages the models θ, weighted by images.'}),
        Side(
            (*BOTH, Model('model θ', WHOLE), Model('C-reg φ', WHOLE), Model('F-reg w', 'small network, kept')),
            {
                1: 'θ labels. F-reg learns to weight each pseudo-label so that φ, after a step on them, does better on '
                'true labels.',
                2: 'C-reg takes that step; its gain on labels is d.',
                3: 'θ takes a step on true labels and on pseudo-labels weighted by F-reg plus d.',
            },
        ),
        {'θ': START},
        {'θ': END},
    ),
    'm_fed': Picture(
        'M-Fed',
        Side(
            (
                Model('task 1', 'encoder|decoder', 'follows'),
                Model('task 2', 'encoder|decoder', 'follows'),
                Model('all tasks', 'mean encoder g', 'follows'),
            ),
            {2: 'Averages the models within each task, then the encoders over tasks.'},
        ),
        Side(
            (Images('images with the truth of one task', True), Model('its task', 'encoder|decoder'))
            + (Model('all tasks', 'mean encoder g', 'used'),),
            {1: 'Passes over its images on the loss of its task, plus a pull of its encoder to g.'},
        ),
        {'model of its task': START, 'mean encoder g': START},
        {'model of its task': END},
    ),
    'splitfed': Picture(
        'SplitFed',
        Side(
            (Model('v1', 'a top for each client'), Model('v2', 'one top for all, in turn')),
            {2: 'A step of the top on the client’s labels.', 4: 'Averages the bottoms, and in v1 the tops.'},
        ),
        Side(
            (BOTH[0], Model('model', 'bottom')),
            {1: 'Runs a batch through its bottom.', 3: 'A step of the bottom with these gradients.'},
        ),
        {'bottom': START, 'gradients of features': STEP},
        {'features, labels': STEP, 'bottom': END},
    ),
}


def width(text: str) -> float:
    """Estimates the pixels of a text: no font of the list is much wider."""
    return 7.1 * len(text)


def text(x: float, y: float, content: str, kind: str = 'plain') -> str:
    """Returns a text; `_s` and `_u` become subscripts."""
    marked = escape(content, quote=False)
    for letter in 'su':
        below = f'<tspan dy="3" font-size="10">{letter}</tspan><tspan dy="-3">&#8203;</tspan>'
        marked = marked.replace(f'K_{letter}', f'K{below}')
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{marked}</text>'


def box(x: float, y: float, w: float, h: float, kind: str, radius: float = 5) -> str:
    """Returns a rectangle with round corners."""
    return f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{radius:g}" class="{kind}"/>'


def held(entry: Images | Model, x: float, y: float) -> list[str]:
    """Draws what a side holds, from the top of its row."""
    middle = y + 16
    if isinstance(entry, Images):
        stack = [box(x + 3 * i, y + 2 + 3 * i, 12, 12, 'image', 1) for i in range(3)]
        if entry.labeled:
            stack.append(f'<circle cx="{x + 17}" cy="{y + 19}" r="5" class="label"/>')
        return [*stack, text(x + 30, middle, entry.text)]
    parts, left = [text(x, middle, entry.text)], x + 92
    for cell in entry.pieces.split('|'):
        parts += [box(left, y + 2, width(cell) + 14, 21, entry.kind)]
        parts += [text(left + (width(cell) + 14) / 2, middle, cell, 'middle')]
        left += width(cell) + 17
    return parts


def card(title: str, side: Side, y: float, many: bool) -> tuple[list[str], float]:
    """Draws a side from the height y. Returns what it draws, and where it ends."""
    x, drawn, top = MARGIN + PAD, [], y
    y += 22
    drawn.append(text(x, y, title, 'title'))
    y += 6
    for entry in side.holds:
        drawn += held(entry, x, y)
        y += ROW
    y += 4
    for number, what in side.does.items():
        y += 4
        for index, line in enumerate(textwrap.wrap(what, 47, break_on_hyphens=False)):
            y += LINE
            if not index:
                drawn.append(f'<circle cx="{x + 8}" cy="{y - 4.5}" r="8.5" class="disc"/>')
                drawn.append(text(x + 8, y, str(number), 'number'))
            drawn.append(text(x + 25, y, line))
    y += 12
    shape = WIDTH - 2 * MARGIN - (8 if many else 0), y - top
    behind = [box(MARGIN + 4 * i, top + 4 * i, *shape, 'card', 8) for i in (2, 1)] if many else []
    return [*behind, box(MARGIN, top, *shape, 'card', 8), *drawn], y + (8 if many else 0)


def travels(picture: Picture, y: float) -> tuple[list[str], float]:
    """Draws what travels between the cards: down on the left, up on the right."""
    drawn, sides = [], [(flows, x) for flows, x in ((picture.down, 24), (picture.up, 214)) if flows]
    if not sides:
        return [], y + 12
    wrapped = [[(textwrap.wrap(what, 23), when) for what, when in flows.items()] for flows, _ in sides]
    bottom = y + 10 + max(sum(LINE * len(what) + LINE + 5 for what, _ in flows) for flows in wrapped)
    for flows, (_, x) in zip(wrapped, sides, strict=True):
        tip, tail = (bottom - 1, y + 3) if x < WIDTH / 2 else (y + 1, bottom - 3)
        back = -9 if tip > tail else 9
        drawn.append(f'<path d="M{x} {tail}V{tip + back}" class="arrow"/>')
        drawn.append(f'<path d="M{x - 6} {tip + back}h12L{x} {tip}z" class="head"/>')
        height = y + 4
        for what, when in flows:
            for line, kind in [*((each, 'plain') for each in what), (when, 'when')]:
                height += LINE
                drawn.append(text(x + 14, height, line, kind))
            height += 5
    return drawn, bottom


def draw(picture: Picture) -> str:
    """Returns the SVG of a picture."""
    server, y = card('Server', picture.server, MARGIN, many=False)
    between, y = travels(picture, y)
    clients, y = card('Each active client', picture.clients, y, many=True)
    entries = [*picture.server.holds, *picture.clients.holds]
    kinds = [kind for kind in LEGEND if any(isinstance(entry, Model) and entry.kind == kind for entry in entries)]
    legend, x, y = [], MARGIN, y + 10
    for kind in kinds:
        legend += [box(x, y, 18, 13, kind, 3), text(x + 23, y + 11.5, LEGEND[kind], 'when')]
        x += 23 + width(LEGEND[kind]) + 20
    height = y + 13 + MARGIN
    body = '\n  '.join([*server, *between, *clients, *legend])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:g}" '
        f'viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="title">\n'
        f'  <title id="title">{escape(picture.title)}: who holds what, what travels, what is averaged</title>\n'
        f'  <style>{STYLE}  </style>\n  {box(0, 0, WIDTH, height, "page", 0)}\n  {body}\n</svg>\n'
    )


if __name__ == '__main__':
    for name, picture in PICTURES.items():
        (FOLDER / f'{name}.svg').write_text(draw(picture))
