"""Which cases of a test run every time. Tests take their time to compile; what is marked `slow` is left out by default,
and nothing lands without it (README.md)."""

import importlib.util

import pytest


def slow_but(cases, *fast_cases):
    """The cases of a parametrization, slow ones but for those that are kept."""

    def mark(case):
        values = case if isinstance(case, tuple) else (case,)
        return case if case in fast_cases else pytest.param(*values, marks=pytest.mark.slow)

    cases = list(cases)
    assert all(case in cases for case in fast_cases), fast_cases
    return [mark(case) for case in cases]


def skip_without_compiler(target):
    """Skips where the compiler of a target of the preview is not installed; what fails beside it is a fault."""
    plugins, extra = {
        'v5e': (['libtpu'], 'preview-tpu'),
        'h200': (['jax_cuda12_plugin', 'jax_cuda13_plugin'], 'preview-cuda'),
    }[target]
    if not any(map(importlib.util.find_spec, plugins)):
        pytest.skip(f"needs pip install -e '.[{extra}]'")
