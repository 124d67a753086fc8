"""Tasks by name, what they show, and Delta_m."""

import numpy as np
import pytest

from semisfl_jax import tasks
from semisfl_jax.core.errors import UserError
from semisfl_jax.tasks import delta_m


@pytest.mark.parametrize(('name', 'outputs'), [('semsegm', 3), ('depth', 2), ('keypoints', 255), ('parts', 1)])
def test_what_is_no_task(name, outputs):
    with pytest.raises(UserError, match=f'{name}.*{"" if name == "semsegm" else outputs}'):
        tasks.make(name, outputs)


def test_what_figures_show():
    assert tasks.make('semseg', 3).show(np.array([[[[0.0, 3, 1], [2, 1, 0]]]])).tolist() == [[[1, 0]]]
    assert tasks.make('edges', 1).show(np.array([[[[0.0], [np.log(3)]]]])).ravel().tolist() == pytest.approx(
        [0.5, 0.75]
    )
    assert tasks.make('depth', 1).show(np.array([[[[0.5], [1.5], [-1.0]]]])).tolist() == [[[127, 254, 0]]]
    heat = np.full((2, 5, 5, 2), -3.0)
    heat[0, 1, 1] = [2, 1]  # both types peak: the higher
    heat[0, 1, 2] = [1.5, -3]  # beside a peak
    heat[0, 4, 4, 1] = 0.5
    heat[0, 4, 0, 0] = -0.5  # not probable
    shown = tasks.make('keypoints', 2).show(heat)
    assert not shown[1].any()
    assert {tuple(at): shown[0][tuple(at)] for at in np.argwhere(shown[0])} == {(1, 1): 1, (4, 4): 2}


def test_delta_m_of_the_paper():
    """Table 2 of M-Fed; a falling error is a gain."""
    local = {'semseg': 42.07, 'parts': 50.74, 'saliency': 58.50, 'edges': 62.60}
    federated = {'semseg': 53.14, 'parts': 55.76, 'saliency': 61.40, 'edges': 66.20}
    m_fed = {'semseg': 53.98, 'parts': 55.93, 'saliency': 61.56, 'edges': 66.20}
    higher = dict.fromkeys(local, True)
    assert delta_m(federated, local, higher) == pytest.approx(11.73, abs=0.005)
    assert delta_m(m_fed, local, higher) == pytest.approx(12.38, abs=0.005)
    assert delta_m({'depth': 0.3, 'ap': 0.6}, {'depth': 0.4, 'ap': 0.5}, {'depth': False, 'ap': True}) == pytest.approx(
        22.5
    )
