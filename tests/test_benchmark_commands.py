"""What lies beside the benchmarks: kernels of a compiled program, counted by phase; the comparison with other
frameworks; and benchmarks/gpu.sh, of which every command has flags that exist."""

import ast
import importlib.util
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks import hlo
from benchmarks.peers import agreement, measure, tables, task, turns, workloads
from benchmarks.peers.catalog import ALL, OURS
from semisfl_jax import config as config_lib
from semisfl_jax.config import command_line
from semisfl_jax.preview import __main__ as preview
from tests import runs
from tests.one_line import assert_one_line
from tests.runs import HANGS, ROOT

PROGRAM = """\
HloModule jit_round_, is_scheduled=true
%passes (t: (s32[])) -> (s32[]) {
  %fusion.1 = s32[] fusion(%t), kind=kLoop, calls=%nothing, metadata={op_name="supervised_step/while/body/add"}
}
%few (b: f32[]) -> f32[] {
  ROOT %copy.1 = f32[] copy(%b)
}
%many (b: f32[]) -> f32[] {
  %copy.2 = f32[] copy(%b)
  ROOT %copy.3 = f32[] copy(%copy.2)
}
%supervised (s: (s32[], f32[4,4])) -> (s32[], f32[4,4]) {
  %while.1 = (s32[]) while(%s), condition=%unknown, body=%passes, STEP/while"}, "known_trip_count":{"n":"12"}
  %conv.1 = (f32[8,4]{1,0}, u8[0]{0}) custom-call(%s), custom_call_target="__cudnn$convForward", \
feature_group_count=10, STEP/transpose(jvp())/conv_general_dilated"}
  %branch = f32[] conditional(%s, %s, %s), branch_computations={%few, %many}
}
%iterations (s: (f32[4,4])) -> (f32[4,4]) {
  %dot.2 = f32[4,4] convolution(%s.1, %s.1), dim_labels=bf_io->bf, ITERATION/jvp()/dot_general"}
  %sum = (f32[256]{0}, bf16[64]{0}) all-reduce-start(%s.1), to_apply=%add, ITERATION/psum"}
  %sum.1 = (f32[256]{0}, bf16[64]{0}) all-reduce-done(%sum)
}
ENTRY %main (key: u32[2]) -> (f32[4,4]) {
  %while.2 = (s32[], f32[4,4]) while(%key), condition=%unknown, body=%supervised, metadata={op_name="jit(round_)/while"}
  %while.3 = (f32[4,4]) while(%while.2), condition=%unknown, body=%iterations, metadata={op_name="jit(round_)/while"}
  ROOT %copy.9 = f32[4,4] copy(%while.3)
}
""".replace('STEP', 'metadata={op_name="while/body/supervised_step')
PROGRAM = PROGRAM.replace('ITERATION', 'metadata={op_name="while/body/closed_call/cross_entity_iteration')


def test_what_a_program_does_by_phase():
    counts = hlo.phases(hlo.parse(PROGRAM))
    assert list(counts) == ['supervised_step', 'cross_entity_iteration', hlo.REST]
    supervised, iteration, rest = counts.values()
    assert supervised.kernels == 12 + 1 + 2  # passes, a convolution, the longer branch
    assert supervised.products == Counter({'cuDNN convForward (backward), 10 feature groups': 1})
    assert (iteration.kernels, iteration.products) == (2, Counter({'product': 1}))
    assert iteration.bytes == Counter({'all-reduce': 4 * 256 + 2 * 64})
    assert rest.kernels == 1  # a copy


@pytest.mark.slow
def test_convolutions_of_a_real_program(capsys):
    """small_cnn has two: student and teacher forward, and backward two gradients of kernels and one of features."""
    assert hlo.main([*runs.words_of('hlo'), '--target=cpu']) == 0
    _, supervised, iteration, rest = re.split('^[at].*kernels', capsys.readouterr().out, flags=re.MULTILINE)
    active = runs.TINY['federation.num_active']  # one after another on a CPU
    for text, clients in ((supervised, 1), (iteration, active)):
        assert f'{4 * clients} convolution (forward)' in text
        assert f'{3 * clients} convolution (backward)' in text
    assert 'convolution' not in rest


TINY = workloads.Workload('mlp', 'MLP', 'mlp200', clients=6, images=5, active=2, steps=3, rounds=4, batch_size=4)


def test_how_far_weights_are_apart():
    start = [np.zeros(3, np.float32), np.zeros((1, 1), np.float32)]
    reference = [np.array([3, 0, 0], np.float32), np.array([[4]], np.float32)]
    other = [np.array([3, 0, 0.5], np.float32), np.array([[4]], np.float32)]
    assert agreement.difference(reference, reference, start) == 0
    assert agreement.difference(other, reference, start) == pytest.approx(0.5 / 5)
    assert agreement.difference(other[:1], reference, start) == float('inf')
    assert agreement.difference([other[0] * np.nan, other[1]], reference, start) == float('inf')


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


SCRIPT = str(ROOT / 'benchmarks' / 'gpu.sh')


def script(*words):
    command = ['bash', SCRIPT, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=False)


def defined(module):
    """The names of the flags of a module, and the values of those that have a few, from its source."""
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
    listed = script(tmp_path / 'out', '--list', *sizes)
    assert listed.returncode == 0, listed.stderr
    assert not (tmp_path / 'out').exists(), 'nothing was run'
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
                preview.request(command[2:])
        elif command[1] == '-m':
            flags = defined(command[2])
            for word in command[3:]:
                if match := re.fullmatch(r'--(\w+)(?:=(.*))?', word):
                    name, value = match.groups()
                    assert name in flags, word
                    assert flags[name] is None or value in flags[name], word
    assert rounds == sorted(set(rounds))
    assert sizes or rounds[-1] == 1000


def test_stages_are_done_once_and_a_failure_ends_no_other(tmp_path, monkeypatch):
    """In place of the interpreter: what does nothing, but says what it was asked for, and fails at a word in a file."""
    out, python, fails = (tmp_path / name for name in ('out', 'python', 'fails'))
    fail = f'[ ! -e {fails} ] || case "$*" in *$(cat {fails})*) echo broken; exit 7 ;; esac'
    python.write_text(f'#!/bin/sh\necho "| $* |"\n{fail}\n')
    python.chmod(0o755)
    monkeypatch.setenv('PYTHON', str(python))
    fails.write_text('benchmarks.methods')
    first = script(out)
    assert first.returncode == 1
    assert 'exit status 7: broken' in first.stdout
    stages = sorted(path.stem for path in out.glob('*.done'))
    assert len(stages) == 12
    assert not [stage for stage in stages if 'methods' in stage]
    summary = (out / 'summary.md').read_text()
    assert 'not done' in summary
    assert 'mean nothing' not in summary
    assert '| -m benchmarks.lowerings --model=alexnet --precision=tf32 --steps=10 --repeats=5 |' in summary

    fails.unlink()
    again = script(out)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count('done before') == 10, 'all but the one that failed, figures and the comparison'
    assert 'not done' not in (out / 'summary.md').read_text()
    for words, named in ((out, '--quick'), str(out)), ((out, '--fast'), "'--fast'"):  # other sizes need another folder
        done = script(*words)
        assert done.returncode == 2
        assert_one_line(done.stderr, [named])
