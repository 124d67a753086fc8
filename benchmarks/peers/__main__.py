"""FedAvg of this project beside a loop in PyTorch, Flower, BlazeFL, pfl, FedJAX and fluke, on the CPU.

    python -m benchmarks.peers                            cnn and mlp; about half an hour on 2 idle cores
    python -m benchmarks.peers --peers=pytorch,flower --workloads=mlp
    python -m benchmarks.peers --workloads=pfl_cifar10,blazefl_cnn,blazefl_resnet18 --rounds=4
    python -m benchmarks.peers --quick                    at a fraction of the size, to see that everything runs

The CNN and the MLP of FedAvg's paper on synthetic images of MNIST's shape, and the benchmarks that pfl and BlazeFL have
of themselves on those of CIFAR-10's, beside their authors and PyTorch alone: the same data, first weights and cohorts
for all. Every peer gets a virtual environment of its own (--envs; made once, needs a network, 1 to 5 GB each); one that
cannot be installed is left out with the reason. First all sides train on data whose order does not matter, and one that
ends on other weights than this project is reported and gets no time. Then they take turns, A B C A B C …, each turn a
new process, never two at once. Writes peers.json and peers.md.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import jax
from absl import flags

from benchmarks import commands, report
from benchmarks.peers import environments, measure, tables, turns, workloads
from benchmarks.peers.catalog import OURS, PEERS, Peer
from semisfl_jax import data
from semisfl_jax.base.errors import UserError

LOGS = 'peers-logs'

flags.DEFINE_list('peers', [peer.name for peer in PEERS], 'beside this project: ' + ', '.join(p.name for p in PEERS))
flags.DEFINE_list('workloads', ['cnn', 'mlp'], 'what to measure: ' + ', '.join(workloads.WORKLOADS))
flags.DEFINE_integer(
    'rounds', 8, 'rounds of a turn; those from the third on count; pfl_cifar10: 12 or more', lower_bound=3
)
flags.DEFINE_integer('turns', 3, 'processes of every side', lower_bound=1)
flags.DEFINE_string('out', 'benchmark_results', 'folder for peers.json, peers.md and logs')
flags.DEFINE_string('envs', '', "folder for the environments of the peers; '': ~/.cache/semisfl_jax/peers")
flags.DEFINE_bool('quick', False, 'smaller federations, to see that everything runs; its times mean nothing')
flags.register_validator(
    'workloads',
    lambda names: names and set(names) <= set(workloads.WORKLOADS),
    f'choose among {", ".join(workloads.WORKLOADS)}',
)


def prepared(peers: list[Peer], folder: Path) -> tuple[dict[Peer, Path], dict[str, dict], dict[str, str]]:
    """The Python of every side that can be measured, facts about each, and reasons why others cannot."""
    sides, facts, left_out = {}, {}, {}
    for number, peer in enumerate([OURS, *peers], start=1):
        try:
            python = environments.make(peer, folder)
            facts[peer.name] = {'versions': environments.versions(python, peer)}
            sides[peer] = python
            print(f'[{number}/{len(peers) + 1}] {peer.title}: {facts[peer.name]["versions"]}', flush=True)
        except environments.Unavailable as error:
            left_out[peer.name] = str(error)
            print(f'[{number}/{len(peers) + 1}] {peer.title} is left out: {error}', flush=True)
    return sides, facts, left_out


def main() -> None:
    values = flags.FLAGS
    known = {peer.name: peer for peer in PEERS}
    if unknown := [name for name in values.peers if name not in known]:
        raise UserError(f'--peers={unknown[0]} is not known; use {", ".join(known)}')
    jax.config.update('jax_platforms', 'cpu')  # only data are made here
    out = commands.folder(values.out)
    envs = Path(values.envs).expanduser().resolve() if values.envs else data.default_cache_dir() / 'peers'
    todo = [workloads.timed(name, values.rounds, values.quick) for name in dict.fromkeys(values.workloads)]
    for workload in todo:
        if values.peers and not {*values.peers} & {*workload.peers}:
            raise UserError(f'--peers={",".join(values.peers)}: {workload.name} is for {", ".join(workload.peers)}')
    wanted = [name for name in dict.fromkeys(values.peers) if any(name in workload.peers for workload in todo)]
    sides, facts, left_out = prepared([known[name] for name in wanted], envs)
    if OURS not in sides:
        sys.exit(f'error: {OURS.title}: {left_out[OURS.name]}')
    result = {
        'machine': report.machine(),
        'quick': values.quick,
        'rounds': values.rounds,
        'turns': values.turns,
        'sides': facts,
        'left_out': left_out,
        'workloads': {},
    }

    def save(measured: dict) -> None:
        result['workloads'] = measured
        (out / 'peers.json').write_text(json.dumps(result, indent=1) + '\n')
        (out / 'peers.md').write_text(tables.tables(result))

    with tempfile.TemporaryDirectory(prefix='peers-') as folder:
        plan = measure.Plan(sides, todo, values.turns, Path(folder), out.resolve() / LOGS)
        try:
            measure.measure(plan, save)
        except turns.Failed as error:
            sys.exit(f'error: {error}')
        except KeyboardInterrupt:
            sys.exit(f'\ninterrupted; what was measured until then is in {out}')
    print('\n' + tables.tables(result))


if __name__ == '__main__':
    commands.run(main, __doc__)
