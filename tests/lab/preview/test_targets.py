"""Devices that are not there: what they have and take, and the compilers that they need."""

import jax
import pytest

from semisfl_jax.base.errors import UserError
from semisfl_jax.lab.preview import targets
from tests.helpers import runs
from tests.helpers.marks import skip_without_compiler
from tests.helpers.one_line import assert_one_line

WORDS = runs.words_of('preview')


@pytest.mark.slow
@pytest.mark.parametrize('name', ['v5e', 'h200'])
def test_a_round_compiles_for_a_device_that_is_not_there(name, capsys):
    """Skipped where its compiler is not installed: pip install -e '.[preview-tpu]' or '.[preview-cuda]'."""
    skip_without_compiler(name)
    assert runs.command(*WORDS, f'--target={name}') == 0
    printed = capsys.readouterr().out
    for part in (targets.TARGETS[name].title, 'fits: all 3 active clients', 'not a forecast'):
        assert part in printed


def test_a_compiler_that_does_not_start_is_named_with_its_package(capsys, monkeypatch):
    def get_topology_desc(*arguments, **options):
        raise jax.errors.JaxRuntimeError('ABORTED: no\nluck')

    monkeypatch.setattr(targets.topologies, 'get_topology_desc', get_topology_desc)
    assert runs.command(*WORDS, '--target=v5e') == 2
    assert_one_line(capsys.readouterr().err, ['--target=v5e', 'ABORTED: no luck', "'semisfl_jax[preview-tpu]'"])


def test_what_jax_takes_of_a_device_and_how_fast_it_multiplies():
    """Three quarters of a GPU's memory; six products of bfloat16 are one of float32 on a TPU."""
    h100, v5e = targets.get('h100'), targets.get('v5e')
    assert h100.usable == 84_942_979_072 * 3 // 4
    assert v5e.usable == 15.75 * 2**30
    assert v5e.peak['float32'] * 6 == pytest.approx(v5e.peak['tf32'] * 3) == pytest.approx(v5e.peak['bfloat16'])


@pytest.mark.parametrize(('name', 'count', 'most'), [('h100', 9, '8 GPUs'), ('v6e', 257, '256 chips')])
def test_more_devices_than_a_machine_has_are_refused(name, count, most):
    with pytest.raises(UserError, match=f'--devices={count} is more than the {most}'):
        targets.devices(targets.get(name), count)
