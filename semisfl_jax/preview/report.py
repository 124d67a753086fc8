"""What a preview shows, as text."""

from __future__ import annotations

from collections.abc import Sequence

from semisfl_jax.core.wording import columns, size
from semisfl_jax.preview import hlo
from semisfl_jax.preview import requirements as floors_lib
from semisfl_jax.preview.program import Program
from semisfl_jax.preview.requirements import Floors, MemoryNeed
from semisfl_jax.preview.targets import Target
from semisfl_jax.training.experiment import Experiment

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


def memory(need: MemoryNeed, target: Target, experiment: Experiment) -> str:
    """Whether a run fits, and what else would."""
    if not target.usable:
        return f'memory: a device needs {size(need.total)}'
    of = '' if target.usable == target.memory else ", three quarters of its memory (JAX's default share)"
    line = f'memory: a device needs {size(need.total)} of {size(target.usable)}{of}'
    if not need.fits(target):
        return f'{line}\nfits: no'
    chunk, active = experiment.config.federation.client_chunk, experiment.config.federation.num_active
    clients = f'client_chunk={chunk}' if chunk else f'all {active} active clients at once (client_chunk=0)'
    trials = need.trials(target)
    if experiment.mesh or not trials:
        return f'{line}\nfits: {clients}'
    return f'{line}\nfits: {clients}; about {trials:,} seeds at once, if each needs what this one does'


def kernels(text: str, experiment: Experiment) -> str:
    """What the round launches, computes and exchanges, by phase."""
    counts = hlo.phases(hlo.parse(text))
    lines = []
    for phase, count in counts.items():
        open_loops = ', and one iteration of each loop whose length is not known before' if count.open_loops else ''
        lines.append(f'{_NAMES[phase]}: {count.kernels:,} kernels{open_loops}')
        lines += [f'  {number:>4} {kind}' for kind, number in sorted(count.products.items())]
        lines += [
            f'  {number:>4} {kind}, {size(count.bytes[kind])} together'
            for kind, number in sorted(count.collectives.items())
        ]
    times = {'supervised_step': experiment.config.k_s, 'cross_entity_iteration': experiment.config.k_u, hlo.REST: 1}
    if counts.keys() <= times.keys():
        launches = sum(times[phase] * count.kernels for phase, count in counts.items())
        lines.append(f'a round launches {launches:,} kernels')
    return '\n'.join(lines)


def floors(of_round: Floors | None, experiment: Experiment, target: Target) -> str:
    """The two floors of each phase, and the whole run."""
    config = experiment.config
    if of_round is None:
        return f'floors: none, since {config.algorithm} has no price (docs/your-own.md)'
    rows: list[tuple[str, ...]] = [('in a round', 'TFLOP', 'GB')]
    if target.bandwidth:
        rows = [('in a round', 'TFLOP', 'arithmetic', 'GB', 'bytes')]
    for name, work in zip((f'{config.k_s} supervised steps', 'the clients of a device'), of_round, strict=True):
        cells = [f'{work.operations / 1e12:.3g}', f'{work.bytes / 1e9:.3g}']
        if target.bandwidth:
            arithmetic, of_bytes = floors_lib.seconds(work, target, config.precision)
            cells = [cells[0], f'{1e3 * arithmetic:.3g} ms', cells[1], f'{1e3 * of_bytes:.3g} ms']
        rows.append((name, *cells))
    lines = ['floors', _table(rows)]
    if target.bandwidth:
        hours = floors_lib.hours(of_round, experiment, target)
        lines.append(
            f'{config.rounds:,} rounds take no less than {_duration(hours)}: a floor, not a forecast\n'
            f'at {target.peak[config.precision] / 1e12:.4g} TFLOP/s and {target.bandwidth / 1e9:,.0f} GB/s '
            f'({target.source})'
        )
    return '\n'.join(lines)


def _duration(hours: float) -> str:
    unit, seconds = next((u for u in (('hour', 3600), ('minute', 60)) if hours * 3600 >= u[1]), ('second', 1))
    number = f'{hours * 3600 / seconds:.3g}'
    return f'{number} {unit}{"" if number == "1" else "s"}'


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text in columns: the first to the left, the others to the right."""
    return '\n'.join(columns(rows, '<' + '>' * (len(rows[0]) - 1)))
