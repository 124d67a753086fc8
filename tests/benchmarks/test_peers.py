"""What lies beside the benchmarks: other frameworks, and the commands of benchmarks/gpu.sh."""

import ast
import importlib.util
import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import agreement, measure, tables, task, turns, workloads
from benchmarks.peers.catalog import ALL, OURS
from semisfl_jax import config as config_lib
from semisfl_jax.__main__ import TOOLS
from semisfl_jax.config import command_line
from semisfl_jax.lab.preview import command as preview
from tests.helpers.runs import HANGS, ROOT

TINY = workloads.Workload('mlp', 'MLP', 'mlp200', clients=6, images=5, active=2, steps=3, rounds=4, batch_size=4)


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
    sides = {ALL[name]: Path(sys.executable) for name in ('ours', 'pytorch', 'flower', 'pfl', 'fedjax')}
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
def test_this_project_and_pytorch_end_on_the_same_weights(tmp_path):
    """Two processes, on the MLP and data whose order does not matter."""
    names = ['ours', *(['pytorch'] if importlib.util.find_spec('torch') else [])]
    sides = {ALL[name]: Path(sys.executable) for name in names}
    plan = measure.Plan(sides, [workloads.timed('mlp', 3, quick=True)], 1, tmp_path / 'work', tmp_path / 'logs')
    measured = measure.measure(plan, lambda result: None)['mlp']
    assert measured['failed'] == {}
    assert all(apart < 1e-5 for apart in measured['difference'].values())
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
