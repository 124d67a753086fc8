"""Figures by name, a user's among them."""

from semisfl_jax.lab.plots import draw
from tests.helpers.plots_toy import made_up


def test_a_long_label_is_a_name_that_a_file_can_have():
    names = {draw.slug(f'algorithm=semisfl, {"k_s=20, " * 50}k_u={k_u}') for k_u in (1, 2)}
    assert len(names) == 2
    assert max(map(len, names)) < 200


def test_a_figure_of_the_user_is_registered(monkeypatch):
    monkeypatch.setattr(draw, 'FIGURES', dict(draw.FIGURES))
    draw.run_figure('mine', 'text')(lambda run: f'of {run.seed}')
    groups = {'algorithm=a': {seed: made_up(seed, [0.5]) for seed in (1, 0)}}
    assert list(draw.figures(groups, ['mine'])) == [('mine', 'of 0')]
    groups['algorithm=b'] = {2: made_up(2, [0.5])}
    assert list(draw.figures(groups, ['mine'])) == [('mine-a', 'of 0'), ('mine-b', 'of 2')]
