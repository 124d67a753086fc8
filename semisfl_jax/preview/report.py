"""What a preview shows, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from semisfl_jax.preview import floors as floors_lib
from semisfl_jax.preview import hlo
from semisfl_jax.preview.fit import Need
from semisfl_jax.preview.floors import Floors
from semisfl_jax.preview.program import Program
from semisfl_jax.preview.targets import Target
from semisfl_jax.training.experiment import Experiment
from semisfl_jax.wording import size

_NAMES = {
    'supervised_step': 'a supervised step',
    'cross_entity_iteration': 'a cross-entity iteration',
    'local_step': "a client's step",
    hlo.REST: 'the rest of the round',
}


def title(experiment: Experiment, target: Target) -> str:
    """The run and the device, in one line."""
    config = experiment.config
    count = experiment.mesh.size if experiment.mesh else 1
    return (
        f'{config.algorithm}, {config.model.name} on {experiment.dataset.name}: {config.federation.num_active} active '
        f'clients, K_s {config.k_s}, K_u {config.k_u}, B {config.batch_size}, {config.precision}; on '
        f'{f"{count} x " if count > 1 else ""}{target.title}'
    )


def programs(named: dict[str, Program]) -> str:
    """Compiling and memory of every program."""
    head = ('program', 'compiled in', 'arguments', 'outputs', 'temporary', 'code')
    rows = [(name, f'{program.seconds:.0f} s', *map(size, program.memory)) for name, program in named.items()]
    return _table([head, *rows])


def memory(need: Need, target: Target, experiment: Experiment) -> str:
    """Whether a run fits, and what else would."""
    if not target.usable:
        return f'memory: a device needs {size(need.total)}'
    of = 'of the' if target.usable == target.memory else 'of the three quarters that JAX takes of a GPU,'
    line = f'memory: a device needs {size(need.total)} {of} {size(target.usable)}'
    if not need.fits(target):
        return f'{line}: too much'
    chunk, active = experiment.config.federation.client_chunk, experiment.config.federation.num_active
    clients = f'client_chunk={chunk}' if chunk else f'all {active} active clients at once (client_chunk=0)'
    trials = need.trials(target)
    if experiment.mesh or not trials:
        return f'{line}: fits, {clients}'
    return f'{line}: fits, {clients}; about {trials} seeds at once, if each needs what this one does'


def kernels(text: str) -> str:
    """What the round launches and computes, by phase."""
    counts = hlo.phases(hlo.parse(text))
    head = ('', 'kernels', 'convolutions and products')
    rows = [(_NAMES[phase], _kernels(count), _listed(count.products) or '-') for phase, count in counts.items()]
    exchanged = [
        f'{_NAMES[phase]}: {number} {kind}, {size(count.bytes[kind])}'
        for phase, count in counts.items()
        for kind, number in count.collectives.items()
    ]
    lines = [_table([head, *rows], left=3)]
    if any(count.open_loops for count in counts.values()):
        lines.append('+ with loops whose length is known only when they run, of which one iteration is counted')
    lines.append('collectives: ' + ('; '.join(exchanged) or 'none'))
    return '\n'.join(lines)


def floors(found: Floors | None, experiment: Experiment, target: Target) -> str:
    """The two floors of each phase, and the whole run."""
    config = experiment.config
    if found is None:
        return f'floors: none, since {config.algorithm} has no price (docs/your-own.md)'
    rows: list[tuple[str, ...]] = [('in a round', 'TFLOP', 'GB')]
    if target.bandwidth:
        rows = [('in a round', 'TFLOP', 'arithmetic', 'GB', 'bytes')]
    for name, work in zip((f'{config.k_s} supervised steps', 'the clients of a device'), found, strict=True):
        cells = [f'{work.operations / 1e12:.3g}', f'{work.bytes / 1e9:.3g}']
        if target.bandwidth:
            arithmetic, of_bytes = floors_lib.seconds(work, target, config.precision)
            cells = [cells[0], f'{1e3 * arithmetic:.3g} ms', cells[1], f'{1e3 * of_bytes:.3g} ms']
        rows.append((name, *cells))
    lines = [_table(rows)]
    if target.bandwidth:
        hours = floors_lib.hours(found, experiment, target)
        lines.append(
            f'floor of {config.rounds:,} rounds, not a forecast: {hours:.3g} hours, '
            f'at {target.peak[config.precision] / 1e12:.4g} TFLOP/s and {target.bandwidth / 1e9:,.0f} GB/s '
            f'({target.source})'
        )
    return '\n'.join(lines)


def _kernels(count: hlo.Count) -> str:
    return f'{count.kernels:,}{"+" if count.open_loops else ""}'


def _listed(products: Counter) -> str:
    return ', '.join(f'{number} {kind}' for kind, number in sorted(products.items()))


def _table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Rows of text in columns: the first to the left, and those from the `left`-th on, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if place == 0 or (left > 1 and place >= left - 1) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append('  '.join(cells).rstrip())
    return '\n'.join(lines)
