"""What lies beside the benchmarks: other frameworks, and the commands of benchmarks/gpu.sh."""

import ast
import dataclasses
import importlib.util
import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks.peers import agreement, environments, measure, problem, tables, task, turns, workloads
from benchmarks.peers.catalog import ALL, OURS
from semisfl_jax import config as config_lib
from semisfl_jax import models
from semisfl_jax.__main__ import TOOLS
from semisfl_jax.config import command_line
from semisfl_jax.lab.preview import command as preview
from tests.helpers.runs import HANGS, ROOT

TINY = workloads.Workload('mlp', 'MLP', 'mlp200', clients=6, images=5, active=2, steps=3, rounds=4, batch_size=4)


@pytest.fixture(autouse=True)
def _own_models(monkeypatch):
    """Those of peers, which other tests do not see."""
    for name, make in problem.OWN.items():
        monkeypatch.setitem(models.ARCHITECTURES, name, make)


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Measures with sides that only pretend: FedJAX ends elsewhere, Flower fails at once, pfl in its second turn."""
    seen = []

    def pretend(peer, folder, rounds, place, weights=None):
        seen.append((peer.name, bool(weights), place.cache))
        if peer.name == 'flower' or (peer.name == 'pfl' and sum(name == 'pfl' for name, *_ in seen) == 3):
            raise turns.Failed('no luck')
        if weights:
            ends = [weight + 1 for weight in task.load(str(folder)).weights]
            ends[0] = ends[0] + (0.1 if peer.name == 'fedjax' else 0)
            np.savez(weights, *ends)
        slow = 2.0 if peer == OURS else 5.0
        return [10.0 + slow * number for number in range(rounds)]

    monkeypatch.setattr(turns, 'run', pretend)
    monkeypatch.setattr(workloads, 'check', lambda workload: TINY)
    sides = {
        ALL[name]: Path(sys.executable) for name in ('ours', 'pytorch', 'flower', 'pfl', 'fedjax', 'blazefl_processes')
    }
    saved = []
    plan = measure.Plan(sides, [TINY], 2, tmp_path / 'work', tmp_path / 'logs')
    measured = measure.measure(plan, lambda result: saved.append(sorted(result['mlp']['ends'])))
    return measured['mlp'], seen, saved


def test_only_sides_with_the_same_weights_are_timed(run, capsys):
    measured, seen, saved = run
    assert {name: len(ends) for name, ends in measured['ends'].items()} == {'ours': 2, 'pytorch': 2}
    assert measured['difference']['fedjax'] > agreement.TOLERANCE
    assert measured['difference']['pytorch'] == 0
    assert measured['failed'] == {'flower': 'no luck', 'pfl': 'no luck'}
    timed = [name for name, weights, _ in seen if not weights]
    assert timed == ['ours', 'pytorch', 'pfl', 'ours', 'pytorch', 'pfl'], 'in turns'
    caches = {cache for name, _, cache in seen if name == 'ours'}
    assert len(caches) == 2, 'the check does not warm the cache of the measurement'
    assert {cache for name, _, cache in seen if name != 'ours'} == {None}
    assert saved[0] == ['ours', 'pfl', 'pytorch']


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'images', 'cohort', 'tested', 'parameters'),
    [
        # two kernels of 3x3 and two dense layers, each with biases
        ('pfl_cifar10', (100, 50), 10, 1000, 9 * 3 * 32 + 32 + 9 * 32 * 64 + 64 + 12544 * 128 + 128 + 128 * 10 + 10),
        # two kernels of 5x5 and three dense layers
        (
            'blazefl_cnn',
            (10, 500),
            10,
            1000,
            25 * 3 * 6 + 6 + 25 * 6 * 16 + 16 + 400 * 120 + 120 + 120 * 84 + 84 + 84 * 10 + 10,
        ),
    ],
)
def test_workloads_of_peers_are_written_as_they_describe_them(name, images, cohort, tested, parameters, tmp_path):
    problem.write(workloads.timed(name, 3, quick=True), tmp_path / 'task')
    made = task.load(str(tmp_path / 'task'))
    assert made.images.shape == (*images, 32, 32, 3)
    assert made.test_images.shape == (tested, 32, 32, 3)
    assert made.labels.shape == images
    assert made.cohorts.shape == (made.rounds, cohort)
    assert made.lr == 0.1
    assert sum(weight.size for weight in made.weights) == parameters
    classes = [len(np.unique(labels)) for labels in made.labels]
    assert set(classes) == {2} if name == 'blazefl_cnn' else min(classes) > 5
    rows = made.batches(np.random.default_rng(0))
    assert rows.shape == (3, made.batch_size)
    assert len(np.unique(rows)) == rows.size, 'no image twice in a pass'


def test_sizes_of_workloads():
    whole = {name: workloads.timed(name, 3, quick=False) for name in workloads.WORKLOADS}
    pfl, blazefl = whole['pfl_cifar10'], whole['blazefl_resnet18']
    assert pfl.rounds == 12, 'two to warm up, ten with an evaluation'
    assert blazefl.rounds == 3
    assert pfl.clients * pfl.images == blazefl.clients * blazefl.images == 50_000
    assert pfl.steps * pfl.batch_size == pfl.images, 'one pass'
    assert blazefl.steps * blazefl.batch_size == 5 * blazefl.images, 'five'
    for name in whole:
        quick = workloads.timed(name, 3, quick=True)
        assert quick.active <= quick.clients
        assert not workloads.check(quick).model.endswith(workloads.DROPOUT)
    resnet = models.build('blazefl_resnet18', 10, (32, 32, 3), projection='none')
    shapes = jax.eval_shape(resnet.init, jax.random.key(0))
    leaves = jax.tree.leaves((shapes.bottom['params'], shapes.top['params']))
    assert sum(leaf.size for leaf in leaves) == 11_181_642, "torchvision's with ten classes"
    assert jax.tree.leaves(shapes.bottom['params']['conv1']['kernel'])[0].shape == (7, 7, 3, 64)
    layers = models.ARCHITECTURES['pfl_cnn_dropout'](10, models.Compute()).layers
    assert [layer(name='layer').dropout for layer in layers] == [0, 0.25, 0, 0.5]


@pytest.mark.slow
@pytest.mark.parametrize('name', ['pfl_cifar10', 'blazefl_cnn'])
def test_models_of_peers_are_those_of_pytorch(name, tmp_path):
    """The same logits, and weights that come back from PyTorch as they were."""
    torch = pytest.importorskip('torch')
    from benchmarks.peers import torch_parts

    small = workloads.check(workloads.timed(name, 3, quick=True))
    problem.write(small, tmp_path / 'task')
    made = task.load(str(tmp_path / 'task'))
    network = torch_parts.network(made)
    images, labels = torch_parts.test_data(made)
    with torch.no_grad():
        expected = network.eval()(images).numpy()
    model = models.build(small.model, 10, (32, 32, 3), projection='none')
    named = [f'layer_{number}' for number in range(len(made.weights) // 2)]
    start = model.init(jax.random.key(0))
    given = iter(made.weights)
    for layer in named:
        piece = start.bottom if layer in start.bottom['params'] else start.top
        variables = piece['params'][layer].get('dense', piece['params'][layer])
        variables |= {'kernel': next(given), 'bias': next(given)}
    features, _ = model.bottom(start.bottom, made.test_images, None, False)
    logits, _ = model.top(start.top, features, None, False)
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    np.testing.assert_array_equal(labels, made.test_labels)
    back = torch_parts.as_weights(network.state_dict(), made)
    for weight, returned in zip(made.weights, back, strict=True):
        np.testing.assert_array_equal(weight, returned)


def test_a_round_between_evaluations_is_a_mean():
    ends = [5.0, 6.0, *(7.0 + number for number in range(4)), 20.0]  # the evaluation takes 9 seconds more
    measured = {'workload': {'evaluate': 5}, 'ends': {'ours': [ends]}}
    assert tables.rounds(measured, 'ours') == [(20 - 6) / 5]
    assert tables.rounds(measured | {'workload': {'evaluate': 0}}, 'ours') == [1, 1, 1, 1, 10]


def test_modes_of_a_peer_share_its_module_and_environment(monkeypatch, tmp_path):
    made = []
    monkeypatch.setattr(environments, '_ready', lambda home, peer: made.append(home) or True)
    for peer in ALL.values():
        assert (ROOT / 'benchmarks' / 'peers' / f'side_{peer.home}.py').exists()
    pythons = {environments.make(ALL[name], tmp_path) for name in ('blazefl', 'blazefl_processes')}
    assert pythons == {tmp_path / 'blazefl' / 'bin' / 'python'}
    assert ALL['blazefl_processes'].mode == 'processes'


@pytest.mark.slow
@pytest.mark.parametrize('name', ['mlp', 'blazefl_cnn'])
def test_this_project_and_pytorch_end_on_the_same_weights(name, tmp_path):
    """Two processes, on data whose order does not matter."""
    names = ['ours', *(['pytorch'] if importlib.util.find_spec('torch') else [])]
    sides = {ALL[name]: Path(sys.executable) for name in names}
    small = workloads.timed(name, 3, quick=True)
    # Rounds of any size give seconds, and the weights are those of the check
    small = dataclasses.replace(small, active=2, rounds=3, evaluate=min(small.evaluate, 1))
    plan = measure.Plan(sides, [small], 1, tmp_path / 'work', tmp_path / 'logs')
    measured = measure.measure(plan, lambda result: None)[name]
    assert measured['failed'] == {}
    assert all(apart < (1e-5 if name == 'mlp' else 1e-4) for apart in measured['difference'].values())
    assert [len(ends) for ends in measured['ends'].values()] == [1] * len(names)
    assert all(len(tables.rounds(measured, name)) == 1 for name in names)


def defined(module):
    """The names of the flags of a module, and the values of those that have a few, from its source."""
    if module.startswith('semisfl_jax.'):
        tool = importlib.import_module(f'semisfl_jax.{TOOLS[module.removeprefix("semisfl_jax.")]}')
        return dict.fromkeys(inspect.signature(tool.run).parameters)
    flags = {}
    path = ROOT / module.replace('.', '/')
    path = path / '__main__.py' if path.is_dir() else path.with_suffix('.py')
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, 'attr', '').startswith('DEFINE_'):
            choices = None
            if node.func.attr == 'DEFINE_enum' and isinstance(node.args[2], ast.List | ast.Tuple):
                choices = [getattr(element, 'value', None) for element in node.args[2].elts]
            flags[node.args[0].value] = choices
    return flags


@pytest.mark.parametrize('sizes', [(), ('--quick',)])
def test_every_command_of_the_script_parses(sizes, tmp_path):
    command = ['bash', ROOT / 'benchmarks' / 'gpu.sh', tmp_path / 'out', '--list', *sizes]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=False)
    assert listed.returncode == 0, listed.stderr
    assert not (tmp_path / 'out').exists(), 'nothing was run'
    (tmp_path / 'out' / 'cifar10' / 'checkpoints' / '2').mkdir(parents=True)
    again = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=True).stdout
    assert again.count('launch.py') == listed.stdout.count('launch.py') - bool(sizes), 'legs that are done are left out'
    commands = [shlex.split(line) for line in listed.stdout.splitlines() if not line.startswith(('git', 'nvidia'))]
    modules = {command[2] for command in commands if command[1] == '-m'}
    assert modules >= {'benchmarks.lowerings', 'benchmarks.run', 'benchmarks.methods', 'semisfl_jax.compare'}
    rounds = []
    for command in commands:
        if command[1] == 'launch.py':
            config = command_line.parse(command[1:]).config
            config_lib.check(config)
            assert config.lr_rounds == 1000, 'legs follow the schedule of the whole run'
            rounds.append(config.rounds)
        elif command[1:3] == ['-m', 'semisfl_jax.preview']:
            if '--target=cpu' in command:  # of others, the compiler need not be installed
                values, words = command_line.read_flags(command[3:], {'target': '', 'devices': 0})
                parsed = command_line.parse(['', *words])
                preview.request(parsed.config, parsed.workdir, **{'devices': 0, **values})
        elif command[1] == '-m':
            flags = defined(command[2])
            for word in command[3:]:
                if match := re.fullmatch(r'--(\w+)(?:=(.*))?', word):
                    name, value = match.groups()
                    assert name in flags, word
                    assert flags[name] is None or value in flags[name], word
    assert rounds == sorted(set(rounds))
    assert sizes or rounds[-1] == 1000
