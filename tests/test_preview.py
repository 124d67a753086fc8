"""The preview command: what it prints, and the line that each mistake gets."""

import jax
import numpy as np
import pytest

from semisfl_jax import core, models
from semisfl_jax.core import machine
from semisfl_jax.core.supervised import steps_at_once
from semisfl_jax.preview import targets
from semisfl_jax.preview.__main__ import main
from tests import runs
from tests.marks import skip_without_compiler
from tests.one_line import assert_one_line

WORDS = runs.words_of('preview')
MANY = '--config.federation.num_clients=600 --config.federation.num_active=300'


@pytest.mark.slow
def test_the_command(capsys):
    assert main([*WORDS, '--target=cpu']) == 0
    printed = capsys.readouterr().out
    for part in ('semisfl, small_cnn on digits: 3 active clients, K_s 8', 'GFLOP', 'fits: all 3', '8 supervised steps'):
        assert part in printed


MISTAKES = {
    '--target=h20': ["--target='h20'", "'h200'"],
    '--target=cpu --devices=0': ['--devices=0'],
    '--target=cpu --devices=4': ['config.parallel.devices=4'],
    '--target=cpu --devices=3': ['config.parallel.devices=3'],
    '--target=cpu --workdir=x': ["--workdir='x'"],
    '--target=cpu --config.seeds=0,1': ['config.seeds=(0, 1)', 'config.seed'],
    '--target=cpu --config.data.partition_file=x.npz': ["config.data.partition_file='x.npz'"],
    f'{MANY} --target=h100 --devices=9': ['--devices=9', '8'],
    f'{MANY} --target=v6e --devices=300': ['--devices=300', '256'],
}


@pytest.mark.parametrize('words', MISTAKES)
def test_every_mistake_is_one_line(words, capsys):
    assert main([*WORDS, *words.split()]) == 2
    assert_one_line(capsys.readouterr().err, MISTAKES[words])


@pytest.mark.slow
@pytest.mark.parametrize('name', ['v5e', 'h200'])
def test_a_device_that_is_not_there(name, capsys):
    """Skipped where its compiler is not installed: pip install -e '.[preview-tpu]' or '.[preview-cuda]'."""
    skip_without_compiler(name)
    assert main([*WORDS, f'--target={name}']) == 0
    printed = capsys.readouterr().out
    for part in (targets.TARGETS[name].title, 'fits: all 3 active clients', 'not a forecast'):
        assert part in printed


@pytest.mark.parametrize(
    ('message', 'words'),
    [
        ('INTERNAL: Mosaic failed', ['Mosaic failed', '--target']),
        ('RESOURCE_EXHAUSTED: 20G of 16G', ['20G of 16G', 'client_chunk=3']),
    ],
)
def test_a_compiler_that_refuses(message, words, capsys, monkeypatch):
    def compile(self, **options):
        raise jax.errors.JaxRuntimeError(message)

    monkeypatch.setattr(jax.stages.Lowered, 'compile', compile)
    assert main([*WORDS, '--target=cpu']) == 2
    assert_one_line(capsys.readouterr().err, words)


def test_a_compiler_that_does_not_start(capsys, monkeypatch):
    def get_topology_desc(*arguments, **options):
        raise jax.errors.JaxRuntimeError('ABORTED: no\nluck')

    monkeypatch.setattr(targets.topologies, 'get_topology_desc', get_topology_desc)
    assert main([*WORDS, '--target=v5e']) == 2
    assert_one_line(capsys.readouterr().err, ['--target=v5e', 'ABORTED: no luck', "'.[preview-tpu]'"])


def test_programs_for_another_platform():
    here = machine.platform()
    assert here == jax.default_backend()
    expected = {'cpu': ('winograd', 'loop'), 'gpu': ('native', 'vmap'), 'tpu': ('native', 'vmap')}
    for platform, (convolution, name) in expected.items():
        with machine.programs_for(platform):
            assert machine.platform() == platform
            assert models._lowering('auto') == convolution
            assert core.trial_map('auto')[0] == name
            one, ahead = (steps_at_once(np.zeros((1, side, side, 3), np.uint8), 128) for side in (512, 32))
            assert (one, ahead) == ((1, 1) if platform == 'cpu' else (1, 2**26 // (128 * 3072)))
    with pytest.raises(ZeroDivisionError), machine.programs_for('tpu'):
        raise ZeroDivisionError
    assert machine.platform() == here
