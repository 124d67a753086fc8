"""Previews: shapes against those of a run, memory against the program of a run, floors against counts by hand."""

import itertools
import os
import subprocess
import sys
from collections import Counter
from types import MappingProxyType

import jax
import numpy as np
import pytest

from benchmarks import arithmetic
from configs import cifar10, svhn
from semisfl_jax import config as config_lib
from semisfl_jax import data, machine, models, parallel
from semisfl_jax.preview import fit, floors, hlo, program, report, shapes, targets
from semisfl_jax.preview.__main__ import main
from semisfl_jax.preview.targets import Devices
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training import inputs, simulation
from semisfl_jax.training.evaluate import batched
from semisfl_jax.wording import size
from tests import needs, runs
from tests.test_cli import assert_one_line

TINY = [f'--config.{key}={value}' for key, value in runs.TINY.items()]
WORDS = ['preview', runs.DIGITS, *TINY]
ONE = Devices(jax.devices('cpu')[0], None)

LOOPS = """\
HloModule jit_round_, is_scheduled=true

%product (a: f32[4,4]) -> f32[4,4] {
  %a = f32[4,4]{1,0} parameter(0)
  ROOT %dot.1 = f32[4,4]{1,0:T(8,128)} dot(%a, %a), lhs_contracting_dims={1}, metadata={op_name="while/body/supervised_step/dot_general"}
}

%passes (t: (s32[])) -> (s32[]) {
  %t = (s32[]) parameter(0)
  %fusion.1 = s32[] fusion(%t), kind=kLoop, calls=%nothing, metadata={op_name="while/body/supervised_step/while/body/add"}
  ROOT %tuple.1 = (s32[]) tuple(%fusion.1)
}

%twelve (t: (s32[])) -> pred[] {
  %constant.1 = s32[] constant(12), metadata={op_name="x"}
  %i = s32[] get-tuple-element(%t), index=0
  ROOT %lt = pred[] compare(%i, %constant.1), direction=LT
}

%few (b: f32[]) -> f32[] {
  ROOT %copy.1 = f32[] copy(%b)
}

%many (b: f32[]) -> f32[] {
  %copy.2 = f32[] copy(%b)
  ROOT %copy.3 = f32[] copy(%copy.2)
}

%small (t: (s32[])) -> (s32[]) {
  ROOT %while.9 = (s32[]) while(%t), condition=%twelve, body=%passes, metadata={op_name="while/body/supervised_step/fold/while"}
}

%supervised (s: (s32[], f32[4,4])) -> (s32[], f32[4,4]) {
  %s = (s32[], /*index=1*/f32[4,4]{1,0}) parameter(0)
  %while.1 = (s32[]) while(%s), condition=%twelve, body=%passes, metadata={op_name="while/body/supervised_step/while"}
  %conv.1 = (f32[8,4]{1,0}, u8[0]{0}) custom-call(%s), custom_call_target="__cudnn$convForward", feature_group_count=10, metadata={op_name="while/body/supervised_step/transpose(jvp())/conv_general_dilated"}
  %fusion.2 = f32[4,4]{1,0} fusion(%s), kind=kOutput, calls=%product, metadata={op_name="while/body/supervised_step/x"}
  %key.1 = (s32[]) call(%s), to_apply=%small, frontend_attributes={xla_cpu_small_call="true"}, metadata={op_name="while/body/supervised_step/fold/while"}
  %branch = f32[] conditional(%s, %s, %s), branch_computations={%few, %many}
  ROOT %tuple.2 = (s32[], f32[4,4]{1,0}) tuple(%fusion.2)
}

%unknown (s: (s32[], s32[])) -> pred[] {
  %i.1 = s32[] get-tuple-element(%s), index=0
  %k = s32[] get-tuple-element(%s), index=1
  ROOT %lt.1 = pred[] compare(%i.1, %k), direction=LT
}

%add (x: f32[], y: f32[]) -> f32[] {
  ROOT %add.1 = f32[] add(%x, %y)
}

%iterations (s: (f32[4,4])) -> (f32[4,4]) {
  %s.1 = (f32[4,4]{1,0}) parameter(0)
  %shared = f32[] fusion(%s.1), kind=kLoop, calls=%few, metadata={op_name="while/body/supervised_step/merged"}
  %dot.2 = f32[4,4] convolution(%s.1, %s.1), dim_labels=bf_io->bf, metadata={op_name="while/body/closed_call/cross_entity_iteration/jvp()/dot_general"}
  %conv.2 = f32[4,4] convolution(%s.1, %s.1), window={size=3x3}, dim_labels=b01f_01io->b01f, batch_group_count=2, metadata={op_name="while/body/closed_call/cross_entity_iteration/conv_general_dilated"}
  %sum = (f32[256]{0}, bf16[64]{0}) all-reduce-start(%s.1), to_apply=%add, metadata={op_name="while/body/closed_call/cross_entity_iteration/psum"}
  %sum.1 = (f32[256]{0}, bf16[64]{0}) all-reduce-done(%sum)
  %all = (f32[16]{0}, f32[128]{0}) all-gather-start(%s.1), metadata={op_name="while/body/closed_call/cross_entity_iteration/all_gather"}
  ROOT %tuple.3 = (f32[4,4]{1,0}) tuple(%dot.2)
}

ENTRY %main (key: u32[2]) -> (f32[4,4]) {
  %key = u32[2]{0} parameter(0)
  %while.2 = (s32[], f32[4,4]) while(%key), condition=%unknown, body=%supervised, metadata={op_name="jit(round_)/while"}
  %while.3 = (f32[4,4]) while(%while.2), condition=%unknown, body=%iterations, metadata={op_name="jit(round_)/while"}, backend_config={"known_trip_count":{"n":"50"}}
  %while.4 = (s32[]) while(%while.3), condition=%unknown, body=%passes, metadata={op_name="jit(round_)/other/while"}
  ROOT %copy.9 = f32[4,4] copy(%while.3)
}
"""  # noqa: E501


def tiny(changes=MappingProxyType({})):
    config = runs.config()
    config.update_from_flattened_dict(dict(changes))
    return config_lib.resolve(config)


def test_what_a_program_does_by_phase():
    # `passes` is of the supervised phase by its name, so the last loop would be one of its loops; give it another name
    text = LOOPS.replace('body=%passes, metadata={op_name="jit(round_)/other/while"}', 'body=%shuffle')
    text = text.replace('ENTRY', '%shuffle (t: (s32[])) -> (s32[]) {\n  ROOT %copy.4 = (s32[]) copy(%t)\n}\n\nENTRY')
    counts = hlo.phases(hlo.parse(text))
    assert list(counts) == ['supervised_step', 'cross_entity_iteration', hlo.REST]
    supervised, iteration, rest = counts.values()
    assert supervised.kernels == 12 + 1 + 1 + 1 + 2  # passes, convolution, fusion, a small loop, the longer branch
    assert supervised.products == Counter({'cuDNN convForward (backward), 10 feature groups': 1, 'product': 1})
    assert iteration.kernels == 5  # a fusion, two products, two collectives
    assert iteration.products == Counter({'product': 1, 'convolution (forward), 2 batch groups': 1})
    assert iteration.collectives == Counter({'all-reduce': 1, 'all-gather': 1})
    assert iteration.bytes == Counter({'all-reduce': 4 * 256 + 2 * 64, 'all-gather': 4 * 128})
    assert (rest.kernels, rest.open_loops) == (2, 1)  # a loop of unknown length counts once, beside a copy
    assert (supervised.open_loops, iteration.open_loops) == (0, 0)


def test_views_ahead_are_of_no_step():
    """A loop over the views of several steps is of the rest, though the compiler merged code of a step into it."""
    views = f'jit(round_)/{hlo.AHEAD}steps'
    text = f"""HloModule program

%views (t: (s32[])) -> (s32[]) {{
  %fusion.1 = s32[8] fusion(%t), metadata={{op_name="{views}/add"}}
  %fusion.2 = s32[8] fusion(%t), metadata={{op_name="{views}/sub"}}
  ROOT %fusion.3 = s32[8] fusion(%t), metadata={{op_name="jit(round_)/supervised_step/add"}}
}}

%step (t: (s32[])) -> (s32[]) {{
  ROOT %fusion.4 = s32[8] fusion(%t), metadata={{op_name="jit(round_)/supervised_step/add"}}
}}

ENTRY %main (t: (s32[])) -> (s32[]) {{
  %while.1 = (s32[]) while(%t), condition=%unknown, body=%views, backend_config={{"known_trip_count":{{"n":"2"}}}}
  ROOT %while.2 = (s32[]) while(%while.1), condition=%unknown, body=%step
}}
"""
    counts = hlo.phases(hlo.parse(text))
    assert {phase: count.kernels for phase, count in counts.items()} == {'supervised_step': 1, hlo.REST: 2 * 3}


def test_a_text_without_a_program():
    with pytest.raises(ValueError, match='no ENTRY'):
        hlo.parse('HloModule empty\n')


@pytest.fixture(scope='module')
def compiled():
    """The tiny run on the CPU: its experiment, round and evaluation."""
    experiment = shapes.experiment(tiny(), None)
    target = targets.get('cpu')
    return experiment, *(make(experiment, target, ONE) for make in (program.compile_round, program.compile_evaluation))


def test_convolutions_of_a_real_program(compiled):
    """small_cnn has two: student and teacher forward, and backward two gradients of kernels and one of features."""
    counts = hlo.phases(hlo.parse(compiled[1].text))
    active = runs.TINY['federation.num_active']  # one after another on a CPU
    for phase, clients in (('supervised_step', 1), ('cross_entity_iteration', active)):
        products = counts[phase].products
        assert products['convolution (forward)'] == 4 * clients
        assert products['convolution (backward)'] == 3 * clients
        assert counts[phase].open_loops == 0
    assert counts[hlo.REST].products.keys() <= {'product'}


def described(tree):
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(jax.numpy.shape(leaf), jax.numpy.asarray(leaf).dtype) for leaf in leaves]


def of_shapes(tree):
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


SETTINGS = {
    'semisfl': {},
    'on the host': {'data.residency': 'host'},
    'whole sets on the host': {'data.residency': 'host', **needs.changes('semifl')},
    'labels at the clients': {'data.residency': 'host', 'data.client_labels': 20},
    'supervised_only': {'algorithm': 'supervised_only'},
    'dense tasks': needs.changes('m_fed'),
    'dense tasks on the host': {'data.residency': 'host', **needs.changes('m_fed')},
}


@pytest.mark.parametrize('name', SETTINGS)
def test_shapes_are_those_of_a_run(name):
    config = tiny(SETTINGS[name])
    real, hollow = experiment_lib.build(config), shapes.experiment(config, None)
    state = simulation.init_state(real)(real.key)
    federation, cohort = next(inputs.inputs(real, 0))
    arguments = shapes.of_round(hollow, ONE)
    assert of_shapes(tuple(arguments)) == described((real.key, state, federation, cohort, np.int32(1)))
    assert all(leaf.sharding.device_set == {ONE.first} for leaf in jax.tree.leaves(arguments))
    batches = batched(real.dataset.test_images, real.test_truth, config.eval_batch_size, jax.device_put)
    assert of_shapes(shapes.of_evaluation(hollow, ONE)) == described((state, batches))


def test_images_of_hollow_data_take_no_memory():
    config = svhn.get_config()
    hollow = data.hollow(config.data)
    assert hollow.train_images.shape == (73_257, 32, 32, 3)
    assert hollow.test_images.shape == (26_032, 32, 32, 3)
    assert hollow.train_images.strides == (0, 0, 0, 0)
    assert set(np.unique(hollow.train_labels)) == set(range(10))
    config.data.update(name='stl10', image_size=48)
    hollow = data.hollow(config.data)
    assert hollow.train_images.shape == (105_000, 48, 48, 3)
    assert np.sum(hollow.train_labels < 0) == 100_000


def test_memory_is_that_of_the_program_of_a_run(compiled):
    real = experiment_lib.build(tiny())
    state = simulation.init_state(real)(real.key)
    jit = simulation.compile_with(real.config)
    arguments = real.key, state, *next(inputs.inputs(real, 0)), np.int32(8)
    analysis = jit(real.algorithm.round, donate_argnums=1).lower(*arguments).compile().memory_analysis()
    _, round_, evaluation = compiled
    assert round_.memory.arguments == analysis.argument_size_in_bytes
    assert round_.memory.temporary == analysis.temp_size_in_bytes
    assert round_.memory.outputs == analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    assert round_.memory.outputs < 1000  # the state takes the place of its argument
    need = fit.need(compiled[0], round_, evaluation)
    images = 1437 * 8 * 8 + 4 * 1437
    test_set = 360 * 8 * 8 + 4 * 360 + 360  # one batch: images, labels, which of them count
    assert need.shared == images + test_set
    assert need.total >= sum(round_.memory[:3]) + test_set


def test_what_fits():
    target = targets.Target('x', 'tpu', 'X', memory=1000)
    assert fit.Need(1000, 0).fits(target)
    assert not fit.Need(1001, 0).fits(target)
    assert fit.Need(300, 100).trials(target) == 4  # 900 beside the images, 200 each
    assert fit.Need(1001, 0).trials(target) == 0
    assert targets.Target('x', 'gpu', 'X', memory=1000).usable == 750
    assert fit.Need(10**9, 0).fits(targets.Target('x', 'cpu', 'X', memory=None))


def padding(model):
    """Operations of one forward pass that a convolution's padding takes, which floors do not count: first, all."""
    sides, channels = ((32, 16, 8, 8, 8), (3, 64, 192, 384, 256, 256)) if model == 'alexnet' else ((), (0,))
    layers = zip(sides, itertools.pairwise(channels), strict=True)
    lost = [2 * (9 * s**2 - (3 * s - 2) ** 2) * a * b for s, (a, b) in layers]
    return (lost[0] if lost else 0), sum(lost)


@pytest.mark.parametrize(('model', 'config'), [('cnn', svhn.get_config()), ('alexnet', cifar10.get_config())])
def test_arithmetic_by_hand(model, config):
    experiment = shapes.experiment(config_lib.resolve(config), None)
    work = floors.of_round(experiment)
    first, lost = padding(model)
    supervised = 100 * 64 * (arithmetic.supervised(model) - 4 * lost + first)
    images = 10 * 64 * (arithmetic.cross_entity(model) - 4 * lost + first)
    clients = 50 * (images + arithmetic.similarity(10, 64))
    assert work.supervised.operations == pytest.approx(supervised, rel=0.015)  # activations, pooling, losses
    assert work.clients.operations == pytest.approx(clients, rel=0.015)
    assert supervised < work.supervised.operations * 1.01


def test_bytes_by_hand():
    """The CNN: weights and momentum of the student read and written, the teacher too; the rest once in, once out."""
    config = config_lib.resolve(svhn.get_config())
    experiment = shapes.experiment(config, None)
    bottom = 5 * 5 * 3 * 32 + 32 + 5 * 5 * 32 * 64 + 64
    top = 1600 * 512 + 512 + 512 * 10 + 10
    head = 1600 * 1600 + 1600 + 1600 * 128 + 128
    activations = experiment.costs.pieces.whole_activations
    work = floors.of_round(experiment)
    whole = bottom + top + head
    assert work.supervised.bytes == 100 * (4 * 6 * whole + 2 * 64 * activations)
    assert work.clients.bytes == 50 * (4 * 4 * (10 * bottom + top + head) + 2 * 640 * activations)
    target = targets.TARGETS['h200']
    per_round = max(work.supervised.operations / 494.5e12, work.supervised.bytes / 4.8e12)
    per_round += max(work.clients.operations / 494.5e12, work.clients.bytes / 4.8e12)
    assert config.precision == 'tf32'
    assert floors.hours(work, experiment, target) == pytest.approx(1000 * per_round / 3600)


def test_clients_are_divided_and_the_server_is_not():
    config = config_lib.resolve(svhn.get_config())
    mesh = jax.sharding.AbstractMesh((4,), (parallel.AXIS,))
    alone = floors.of_round(shapes.experiment(config, None))
    together = floors.of_round(shapes.experiment(config, None)._replace(mesh=mesh))
    assert together.supervised == alone.supervised
    assert together.clients.operations == pytest.approx(alone.clients.operations * 3 / 10)  # of 12, two of them padding
    assert together.clients.bytes < alone.clients.bytes


def test_programs_for_another_platform():
    here = machine.platform()
    assert here == jax.default_backend()
    expected = {'cpu': ('winograd', 'loop'), 'gpu': ('native', 'vmap'), 'tpu': ('native', 'vmap')}
    for platform, (convolution, name) in expected.items():
        with machine.programs_for(platform):
            assert machine.platform() == platform
            assert models._lowering('auto') == convolution
            assert parallel.trial_map('auto')[0] == name
    with pytest.raises(ZeroDivisionError), machine.programs_for('tpu'):
        raise ZeroDivisionError
    assert machine.platform() == here


def test_peaks_of_targets():
    for target in targets.TARGETS.values():
        assert target.source
        assert 0 < target.peak['float32'] <= target.peak['tf32'] <= target.peak['bfloat16']
        assert 1e11 < target.bandwidth < 1e13
        assert target.usable <= target.memory
        assert bool(target.cores) == (target.platform == 'gpu')
    assert targets.TARGETS['v5e'].peak['float32'] == pytest.approx(197e12 / 6)


def test_the_command(capsys):
    assert main([*WORDS, '--target=cpu']) == 0
    printed = capsys.readouterr().out
    for part in (
        'semisfl, small_cnn on digits: 3 active clients, K_s 8, K_u 2, B 4, tf32; on the CPU of this machine',
        'a supervised step',
        'a cross-entity iteration',
        'a round launches ',
        'fits: all 3 active clients at once',
        '8 supervised steps',
    ):
        assert part in printed
    assert main(['preview', '--help']) == 0
    assert '--target=NAME' in capsys.readouterr().out


MISTAKES = {
    '--target=h20': ["--target='h20'", "did you mean 'h200'?"],
    '--target=': ['--target is missing', '--target=h200'],
    '--target=cpu --devices=0': ['--devices=0', 'use 1 or more'],
    '--target=cpu --devices=two': ["'two' is not a number of devices"],
    '--target=cpu --devices=4': ['config.parallel.devices=4', 'use at most 3'],
    '--target=cpu --devices=3': ['config.parallel.devices=3 is more than the 1 available'],
    '--target=cpu --fit=yes': ['--fit=yes has a value'],
    '--target=cpu --workdir=x': ["--workdir='x'", 'leave it out'],
    '--target=cpu --config.seeds=0,1': ['config.seeds=(0, 1)', 'use config.seed'],
    '--target=cpu --config.data.partition_file=x.npz': ["config.data.partition_file='x.npz'", 'leave it empty'],
    '--target=cpu --config.k_uu=1': ['config.k_uu is not a key'],
    '--target=cpu --config.model.name=alexnt': ["did you mean 'alexnet'?"],
    '--target=cpu --config.model.name=vgg13': ['images of 8x8 are too small', 'use model.name=small_cnn'],
    '--target=cpu --config.data.name=nowhere': ['nowhere'],
}


@pytest.mark.parametrize('words', MISTAKES)
def test_every_mistake_is_one_line(words, capsys):
    assert main([*WORDS, *words.split()]) == 2
    assert_one_line(capsys.readouterr().err, MISTAKES[words])


@pytest.mark.parametrize(('name', 'extra'), [('v5e', 'preview-tpu'), ('t4', 'preview-cuda')])
def test_a_compiler_that_is_not_installed(name, extra, capsys, monkeypatch):
    monkeypatch.setattr(targets, '_installed', lambda module: False)
    assert main([*WORDS, f'--target={name}']) == 2
    assert_one_line(capsys.readouterr().err, [f'--target={name} needs', f"pip install -e '.[{extra}]'"])


def test_the_extras_exist():
    text = (runs.ROOT / 'setup.py').read_text()
    for _, extra in targets._PLUGINS.values():
        assert f"'{extra}': [" in text


def test_too_many_devices_of_a_target(capsys, monkeypatch):
    monkeypatch.setattr(targets, '_installed', lambda module: True)
    words = [runs.DIGITS, '--config.federation.num_clients=600', '--config.federation.num_active=300']
    assert main(['preview', *words, '--target=h100', '--devices=9']) == 2
    assert_one_line(capsys.readouterr().err, ['--devices=9', 'use 8 or fewer'])
    assert main(['preview', *words, '--target=v6e', '--devices=300']) == 2
    assert_one_line(capsys.readouterr().err, ['--devices=300', '256 chips'])


def test_a_run_that_does_not_fit(capsys, monkeypatch, compiled):
    """The tiny run in a memory that is too small for it by a byte, and in one that no run fits."""
    need = fit.need(*compiled).total
    monkeypatch.setattr(machine, 'host_memory', lambda: need - 1)
    assert main([*WORDS, '--target=cpu']) == 2
    printed = capsys.readouterr()
    assert 'fits: no\n' in printed.out
    assert_one_line(printed.err, ['does not fit', 'client_chunk=3', '--fit'])
    monkeypatch.setattr(machine, 'host_memory', lambda: 1000)
    assert main([*WORDS, '--target=cpu', '--fit']) == 2
    assert_one_line(capsys.readouterr().err, ['does not fit', 'not even one client at a time'])


@pytest.mark.parametrize(('largest', 'words'), [(2, ['client_chunk=2 fits']), (0, ['not even one client'])])
def test_a_chunk_that_fits(largest, words, capsys, monkeypatch, compiled):
    """With 10 clients 5 are tried, then 2, then 1."""
    _, round_, evaluation = compiled
    tried = []

    def compile_round(experiment, *others):
        tried.append(experiment.config.federation.client_chunk)
        fits = 0 < tried[-1] <= largest
        return round_ if fits else program.Refused('RESOURCE_EXHAUSTED: out', for_memory=True)

    monkeypatch.setattr(program, 'compile_round', compile_round)
    monkeypatch.setattr(program, 'compile_evaluation', lambda *arguments: evaluation)
    assert main([*WORDS, '--target=cpu', '--fit', '--config.federation.num_active=10']) == 2
    assert_one_line(capsys.readouterr().err, words)
    assert tried == [0, 5, 2] + [1] * (not largest)


@pytest.mark.slow
def test_several_devices_exchange():
    """On two CPU devices: the server's gradient is summed in every iteration, and the teacher's keys are gathered."""
    flags = {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': '--xla_force_host_platform_device_count=2'}
    words = [*WORDS[1:], '--target=cpu', '--devices=2', '--config.federation.num_active=2']
    result = subprocess.run(
        [sys.executable, '-m', 'semisfl_jax.preview', *words],
        cwd=runs.ROOT,
        capture_output=True,
        text=True,
        timeout=runs.HANGS,
        env=os.environ | flags,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    step, _, iteration = result.stdout.partition('a cross-entity iteration')
    iteration, _, rest = iteration.partition('the rest')
    assert 'all-' not in step
    server = 128 * 64 + 64 + 64 * 10 + 10 + 2 * (128 * 128 + 128)
    bottom = 9 * 16 + 16 + 9 * 16 * 32 + 32
    assert f'1 all-reduce, {size(4 * server)} together' in iteration
    assert f'all-gather, {size(8 * (4 * 128 + 4 + 1))} together' in iteration  # keys, labels, flags of 2 x 4 rows
    assert f'all-reduce, {size(4 * bottom)} together' in rest


@pytest.mark.slow
@pytest.mark.parametrize('name', ['v5e', 'h200'])
def test_a_device_that_is_not_there(name, capsys):
    """Skipped where its compiler is not installed: pip install -e '.[preview-tpu]' or '.[preview-cuda]'."""
    modules, extra = targets._PLUGINS[targets.TARGETS[name].platform]
    if not any(map(targets._installed, modules)):
        pytest.skip(f"needs pip install -e '.[{extra}]'")
    assert main([*WORDS, f'--target={name}']) == 0
    printed = capsys.readouterr().out
    assert f'on {targets.TARGETS[name].title}' in printed
    assert 'fits: all 3 active clients at once' in printed
    assert 'not a forecast' in printed


@pytest.mark.parametrize(
    ('message', 'words'),
    [
        (
            'INTERNAL: Mosaic failed',
            ['the round does not compile for the CPU of this machine', 'Mosaic failed', 'another --target'],
        ),
        ('RESOURCE_EXHAUSTED: 20G of 16G', ['the round does not fit on', '20G of 16G', 'client_chunk=3']),
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

    monkeypatch.setattr(targets, '_installed', lambda module: True)
    monkeypatch.setattr(targets.topologies, 'get_topology_desc', get_topology_desc)
    for name in ('v5e', 't4'):
        assert main([*WORDS, f'--target={name}']) == 2
        assert_one_line(capsys.readouterr().err, [f'--target={name} does not start (ABORTED: no luck)'])


def test_durations():
    assert [report._duration(hours) for hours in (30, 1, 0.5, 0.002)] == [
        '30 hours',
        '1 hours',
        '30 minutes',
        '7.2 seconds',
    ]
