"""Rounding and flows, held against brute force."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from semisfl_jax.data.apportion import controlled_rounding, fill_rows, largest_remainder, split_evenly


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20).filter(any), st.integers(0, 5000))
@settings(max_examples=50, deadline=None)
def test_largest_remainder_is_exact_and_within_one(weight, total):
    counts = largest_remainder(np.array(weight), total)
    assert counts.sum() == total
    assert all(abs(c * sum(weight) - w * total) < sum(weight) for c, w in zip(counts, weight, strict=True))
    # No part with a smaller remainder was rounded up before one with a larger remainder.
    up = [w * total % sum(weight) for c, w in zip(counts, weight, strict=True) if c > w * total // sum(weight)]
    down = [w * total % sum(weight) for c, w in zip(counts, weight, strict=True) if c == w * total // sum(weight)]
    assert not up or not down or min(up) >= max(down)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(1, 20))
@settings(max_examples=50, deadline=None)
def test_level_columns_and_totals_stay_within_one(sizes, parts):
    counts = split_evenly(np.array(sizes), parts)
    assert counts.shape == (parts, len(sizes))
    assert counts.sum(axis=0).tolist() == sizes
    assert np.ptp(counts, axis=0).max() <= 1
    assert np.ptp(counts.sum(axis=1)) <= 1


@given(
    st.integers(1, 8).flatmap(lambda n: st.lists(st.lists(st.integers(0, 5), min_size=n, max_size=n), min_size=1)),
    st.integers(0, 300),
)
@settings(max_examples=50, deadline=None)
def test_controlled_rounding_keeps_columns_and_moves_the_rest_by_less_than_one(columns, total):
    weights = np.array([column for column in columns if any(column)], float).T
    if not weights.size:
        return
    shares = weights / weights.sum(axis=0) * total
    counts = controlled_rounding(shares)
    assert counts.dtype == np.int64
    np.testing.assert_array_equal(counts.sum(axis=0), total)
    assert np.abs(counts - shares).max() < 1
    assert np.abs(counts.sum(axis=1) - shares.sum(axis=1)).max() < 1
    assert (counts[shares == 0] == 0).all()


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_demand_can_be_met_just_where_no_rows_together_ask_for_too_much(data):
    """Hall's condition, over all sets of rows."""
    demand = np.array(data.draw(st.lists(st.integers(0, 6), min_size=4, max_size=4)))
    room = np.array(data.draw(st.lists(st.integers(0, 6), min_size=3, max_size=3)))
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=12, max_size=12))).reshape(4, 3)
    sets = [list(rows) for size in range(1, 5) for rows in itertools.combinations(range(4), size)]
    counts = fill_rows(demand, allowed, room)
    if any(demand[rows].sum() > room[allowed[rows].any(axis=0)].sum() for rows in sets):
        assert counts is None
    else:
        np.testing.assert_array_equal(counts.sum(axis=1), demand)
        assert (counts.sum(axis=0) <= room).all()
        assert (counts >= 0).all()
        assert not counts[~allowed].any()


def test_even_parts_where_there_is_room_and_full_columns_where_there_is_not():
    everything = np.ones((2, 3), bool)
    assert np.ptp(fill_rows([7, 9], everything, [100, 100, 100]), axis=1).tolist() == [1, 0]  # 2, 2, 3 and 3, 3, 3
    # Thirds would put 10 and 20 into the first column, which has room for 6: scaled to 2 and 4, and the rest is even.
    assert fill_rows([30, 60], everything, [6, 100, 100]).tolist() == [[2, 14, 14], [4, 28, 28]]
    # The second row needs all of the first column: the first row has nothing of it, not just very little.
    assert fill_rows([1000, 1], np.array([[True, True], [True, False]]), [1, 1000]).tolist() == [[0, 1000], [1, 0]]
