"""Looks of methods and groups, titles, and a library that is imported late."""

import re

from configs.studies import paper
from semisfl_jax import algorithms
from semisfl_jax.lab.plots import draw, style
from tests.helpers import runs
from tests.helpers.plots_toy import made_up


def test_groups_and_methods_differ_in_look():
    """Rows of studies are methods by their titles; groups of one method share its color."""
    looks = {name: style.Look(method.label, *method.look) for name, method in algorithms.METHODS.items() if method.look}
    assert {name: looks[method].title for name, method in paper.METHODS.items()} == {
        name: name for name in paper.METHODS
    }
    for dense_ in (False, True):
        methods = [look for name, look in looks.items() if algorithms.get(name).dense == dense_]
        assert len({look.color for look in methods}) == len({look.marker for look in methods}) == len(methods)
    every = style.looks([method.label for method in algorithms.METHODS.values()])
    assert len({look[1:] for look in every.values()}) == len(every) == len(algorithms.METHODS)
    made = style.looks([f'SemiSFL, federation.alpha={alpha}' for alpha in range(12)] + ['SemiFL, x=1', 'SemiFL, x=2'])
    assert made['SemiSFL, federation.alpha=0'][1:] == looks['semisfl'][1:]
    assert len({look.color for look in made.values()}) == 2
    assert len({(look.marker, look.dash) for look in made.values()}) == 14


def test_a_path_with_dollars_is_no_formula():
    groups = {rf'algorithm=semisfl, data.image_folder=/a/$\bad{{$/{n}': {0: made_up(0, [0.5, 0.6])} for n in range(2)}
    name = next(iter(draw.FIGURES))
    with style.context():
        ((_, figure),) = draw.figures(groups, [name])
        assert style.content(figure, 'png')
    assert style.group_title('algorithm=semisfl, data.image_folder=/$a') == r'SemiSFL, data.image_folder=/\$a'


def test_matplotlib_is_imported_only_when_a_figure_is_made():
    for path in (runs.ROOT / 'semisfl_jax/lab/plots').glob('*.py'):
        assert not re.search(r'^(import|from) (matplotlib|sklearn)', path.read_text(), re.MULTILINE), path


def test_a_tall_legend_of_a_column_takes_the_page():
    """Eight names fill two columns of a narrow figure, long ones a single one, in which they are taller than half."""
    heights = []
    with style.context():
        for word in ('short', 'a name that is as long as half of the column'):
            figure, ax = style.figure()
            for number in range(8):
                ax.plot([0, 1], label=f'{word} {number}')
            style.legend(figure)
            heights.append(figure.legends[-1].get_window_extent().height / figure.bbox.height)
            assert figure.get_figwidth() == style.WIDTHS['page' if word != 'short' else 'column']
    assert max(heights) < 0.5
