"""Verdicts on claims of the papers, by numbers made by hand."""

import importlib.util
import math
import re
import sys

import pytest
from scipy import stats

from semisfl_jax.base.errors import UserError
from semisfl_jax.lab.studies.statistics import Difference
from tests.helpers.runs import ROOT

HEAD = 'table,row,column,measure,target,unit,seed,value'


def script(name):
    """A script of docs/, which is no package, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f'docs/{name}.py')
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


claims = script('claims')  # which the other one imports
reproduction = script('reproduction')


def results(tmp_path, lines, empty=()):
    folder = tmp_path / 'toy-cpu'
    folder.mkdir()
    (folder / 'runs.csv').write_text('\n'.join([HEAD, *lines]) + '\n')
    every = dict.fromkeys(line.rsplit(',', 3)[0] for line in [HEAD, *lines, *empty])
    (folder / 'cells.csv').write_text('\n'.join(every) + '\n')
    return tmp_path


def claim(**changes):
    return {'name': 'x', 'study': 'toy:cpu', 'table': 'T', 'rows': [['a', 'b']], 'expect': 'above'} | changes


@pytest.mark.parametrize(
    ('mean', 'error', 'p', 'expect', 'verdict'),
    [
        # four seeds: the interval is 3.18 errors to each side
        (1.0, 0.1, 0.001, 'above', 'holds'),
        (-1.0, 0.1, 0.001, 'above', 'the opposite'),
        (-1.0, 0.1, 0.001, 'below', 'holds'),
        (0.1, 0.1, 0.4, 'above', 'no difference'),  # [-0.22, 0.42]
        (0.1, 0.2, 0.6, 'above', 'undetermined'),  # [-0.54, 0.74]
        (0.1, 0.1, 0.4, 'same', 'holds'),
        (0.1, 0.2, 0.6, 'same', 'undetermined'),
        (1.0, 0.1, 0.001, 'same', 'the opposite'),
    ],
)
def test_verdicts(mean, error, p, expect, verdict):
    assert claims.judge(Difference(mean, error, 4, p), p, expect, 'points') == verdict


def test_differences_are_of_pairs_and_corrected_for_their_number(tmp_path):
    """Against scipy on numbers written here; two tests, so Holm doubles the smaller p."""
    scores = {('a', 'u'): (3, 5, 4), ('b', 'u'): (1, 2, 3), ('a', 'v'): (3, 1, 2.5), ('b', 'v'): (2, 1, 3)}
    lines = [f'T,{r},{c},accuracy,,%,{s},{x}' for (r, c), values in scores.items() for s, x in enumerate(values)]
    lines += ['other,a,u,accuracy,,%,0,99']
    found = claims.judged(claim(), results(tmp_path, lines))
    p = [stats.ttest_rel(scores['a', c], scores['b', c]).pvalue for c in 'uv']
    assert p[0] < p[1]
    assert [c.p for c in found.comparisons] == pytest.approx([2 * p[0], max(2 * p[0], p[1])])
    first = found.comparisons[0]
    assert first.mean == pytest.approx(2.0)  # of 2, 3 and 1
    half = 1.0 / math.sqrt(3) * stats.t.ppf(0.975, 2)
    assert (first.low, first.high) == pytest.approx((2 - half, 2 + half))
    assert found.verdict == 'undetermined'


def test_ratios_are_of_geometric_means(tmp_path):
    lines = [f'T,a,u,minutes,0.8,min,{s},{x}' for s, x in enumerate((1.0, 2.0, 4.0))]
    lines += [f'T,b,u,minutes,0.8,min,{s},{x}' for s, x in enumerate((2.0, 4.4, 7.6))]
    (found,) = claims.judged(claim(unit='ratio', expect='below'), results(tmp_path, lines)).comparisons
    assert found.mean == pytest.approx((8 / (2 * 4.4 * 7.6)) ** (1 / 3) - 1)
    assert found.verdict == 'holds'


def test_a_target_that_few_seeds_reach(tmp_path):
    """It is said, and does not count among the tests that p is corrected for."""
    lines = [f'T,a,{c},minutes,0.8,min,{s},{1 + s}' for c in 'uvw' for s in range(3)]
    lines += [f'T,b,u,minutes,0.8,min,{s},{x}' for s, x in enumerate((2.0, 4.4, 7.0))]
    lines += [f'T,b,v,minutes,0.8,min,{s},{s + 1}' for s in range(2)]
    asked = claim(unit='ratio', expect='below')
    item = claims.judged(asked, results(tmp_path, lines, ['T,b,w,minutes,0.8,min,,']))
    assert [c.verdict for c in item.comparisons] == ['holds', *2 * ['too few seeds reached it']]
    assert [c.seeds for c in item.comparisons] == [3, 2, 0]
    logs = [math.log((1 + s) / x) for s, x in enumerate((2.0, 4.4, 7.0))]
    assert item.comparisons[0].p == pytest.approx(stats.ttest_1samp(logs, 0).pvalue)
    assert item.verdict == 'holds in 1, too few seeds reached it in 2 of 3'
    assert re.search(r'\n\| a − b \| ✓ −.*\(n=2\) .*\(n=0\) \|$', reproduction.table(item))


def test_an_accuracy_without_pairs_is_a_mistake(tmp_path):
    lines = [f'T,{row},u,accuracy,,%,{seed},1' for row, seed in (('a', 0), ('b', 1))]
    with pytest.raises(UserError, match='no pair of runs'):
        claims.judged(claim(), results(tmp_path, lines))


def test_columns_are_compared_within_a_row(tmp_path):
    lines = [f'T,a,{c},accuracy,,%,{s},{x + s}' for c, x in (('u', 2.0), ('v', 2.1)) for s in range(3)]
    asked = claim(row='a', column_pairs=[['u', 'v']])
    del asked['rows']
    (found,) = claims.judged(asked, results(tmp_path, lines)).comparisons
    assert found.mean == pytest.approx(-0.1)


def test_tuned_methods_and_parts_of_a_study_have_results_of_their_own(tmp_path):
    assert claims.judged(claim(), tmp_path).verdict == 'not run yet'
    for name in ('toy-cpu', 'toy-part-0a1b2c-cpu', 'toy-part-0a1b2d-cpu-3e4f5a', 'toy-tuned-0a1b2c-cpu'):
        (tmp_path / name).mkdir()
    tuned = claim(tuned='results/sweep-toy/tuned.json')
    assert claims.folder_of(claim(), tmp_path).name == 'toy-cpu'
    assert claims.folder_of(tuned, tmp_path).name == 'toy-tuned-0a1b2c-cpu'
    assert claims.folder_of(claim(part='0a1b2d'), tmp_path).name == 'toy-part-0a1b2d-cpu-3e4f5a'
    assert claims.folder_of(claim(part='0a1b2e'), tmp_path) is None
    (tmp_path / 'toy-tuned-0a1b2d-cpu').mkdir()
    with pytest.raises(UserError, match='toy'):
        claims.folder_of(tuned, tmp_path)


def test_cells_beside_those_of_a_part(tmp_path):
    """Row a is of the part, 3 where the other has 9; b is of the other alone."""
    for part, rows in {'1': {'a': 3}, '2': {'a': 9, 'b': 1}}.items():
        lines = [f'T,{row},u,accuracy,,%,{seed},{x + seed}' for row, x in rows.items() for seed in range(3)]
        results(tmp_path, lines).joinpath('toy-cpu').rename(tmp_path / f'toy-part-{part}-cpu')
    (found,) = claims.judged(claim(part='1', beside='2'), tmp_path).comparisons
    assert found.mean == 2


def test_several_verdicts_are_counted():
    place = claims.Place('a', 'u', 'accuracy', '')
    one = claims.Comparison(place, place, 1, 0, 2, 3, 0.1, 'holds')
    item = claims.Judged(claim(), [one, one._replace(verdict='undetermined'), one])
    assert item.verdict == 'holds in 2, undetermined in 1 of 3'
    assert item._replace(comparisons=[one, one]).verdict == 'holds'
    assert item._replace(comparisons=[one._replace(verdict='the opposite')]).verdict == 'does not hold: the opposite'


# --- the page


@pytest.mark.slow
def test_the_page_is_what_its_script_makes():
    assert reproduction.PAGE.read_text() == reproduction.text(), 'run python docs/reproduction.py'
