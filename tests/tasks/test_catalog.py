"""Tasks by name, what they show, and Delta_m."""

import numpy as np
import pytest

from semisfl_jax import tasks
from semisfl_jax.base.errors import UserError


@pytest.mark.parametrize(('name', 'outputs'), [('semsegm', 3), ('depth', 2), ('keypoints', 255), ('parts', 1)])
def test_an_impossible_task_is_refused(name, outputs):
    with pytest.raises(UserError, match=f'{name}.*{"" if name == "semsegm" else outputs}'):
        tasks.make(name, outputs)


def test_figures_show_outputs_in_units_of_the_target():
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
