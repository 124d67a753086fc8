"""Which cases of a test run every time. Tests take their time to compile; what is marked `slow` is left out by default,
and nothing lands without it (README.md)."""

import pytest


def slow_but(cases, *fast_cases):
    """The cases of a parametrization, slow ones but for those that are kept."""

    def mark(case):
        values = case if isinstance(case, tuple) else (case,)
        return case if case in fast_cases else pytest.param(*values, marks=pytest.mark.slow)

    cases = list(cases)
    assert all(case in cases for case in fast_cases), fast_cases
    return [mark(case) for case in cases]
