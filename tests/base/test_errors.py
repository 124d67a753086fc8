"""How errors end the command, and how messages show values."""

import signal
import sys
from unittest import mock

import numpy as np
import pytest

from semisfl_jax.base import errors


def test_a_command_whose_output_nobody_reads_ends_as_if_by_sigpipe(tmp_path, monkeypatch):
    """`command | head` prints no word."""
    with (tmp_path / 'out').open('w') as out:
        monkeypatch.setattr(sys, 'stdout', out)
        assert errors.exit_status(mock.Mock(side_effect=BrokenPipeError)) == 128 + signal.SIGPIPE


def test_a_message_is_one_line_and_ends_with_its_advice():
    """A value of 5,000 characters is cut; a message of 2,000 keeps its last 300, which say what to do."""
    line = errors.one_line(f"config.name='{'y' * 5000}' is\n unknown; use one of a, b")
    assert line == f"config.name='{'y' * 60}... (5,000 characters)' is unknown; use one of a, b"
    line = errors.one_line('word ' * 400 + 'use another')
    assert (len(line), line[700:705], line[-11:]) == (1005, ' ... ', 'use another')


@pytest.mark.parametrize(
    ('text', 'shown'),
    [
        (errors.size(17), '17 bytes'),
        (errors.size(64 * 2**20), '64 MiB'),
        (errors.size(1.5 * 2**30), '1.5 GiB'),
        (errors.size(2000 * 2**50), '2,000 PiB'),
        (errors.count(1, 'round'), '1 round'),
        (errors.count(1000, 'round'), '1,000 rounds'),
        (errors.describe(np.zeros((2, 10), np.float32)), 'float32 [2, 10]'),
        (errors.describe({}), 'a dict'),
        (errors.describe(None), 'None'),
        (errors.describe(int), 'the class int'),
        (errors.with_article('int'), 'an int'),
        (errors.nearest('FEDAVG', ('fedprox', 'FedAvg')), 'FedAvg'),
        (errors.use_one_of('fedavq', ('fedavg', 'semifl')), "use one of fedavg, semifl; did you mean 'fedavg'?"),
        (errors.first_line(ValueError('\none\ntwo')), 'one'),
        (errors.first_line(ValueError()), 'ValueError'),
        ('|'.join(errors.columns([['a', '10'], ['bcd', '5']], '<>')), 'a    10|bcd   5'),
    ],
)
def test_values_are_shown(text, shown):
    assert text == shown
