"""An experiment round by round."""

import numpy as np
import pytest

import semisfl_jax as sfl
from tests.helpers import runs


def test_a_simulation_has_the_numbers_of_a_run(reference):
    """Round by round, K_s of which adapts."""
    simulation = sfl.build(sfl.get_config('digits', runs.TINY))
    carry = simulation.init()
    for record in runs.records(reference):
        before = carry
        carry, metrics = simulation.round(carry)
        for name, value in metrics.items():  # files have the digits of a float32
            expected = np.nan if record[name] is None else record[name]
            np.testing.assert_array_equal(np.float32(value), np.float32(expected), err_msg=name)
        assert np.float32(simulation.evaluate(carry)['teacher']) == np.float32(record['teacher_accuracy'])
    np.testing.assert_equal(simulation.round(before)[1], metrics)  # any round, once more


def test_several_seeds_are_no_simulation():
    with pytest.raises(sfl.UserError, match=r'config\.seeds=\(0, 1\)'):
        sfl.build(sfl.get_config('digits', seeds=(0, 1)))
