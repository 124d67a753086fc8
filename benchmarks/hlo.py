"""Counts kernels, products and collectives of the round of a configuration, in the compiled program (optimized HLO).

    python -m benchmarks.hlo --config=configs/cifar10.py --target=h200

Takes the words of `python -m semisfl_jax.preview`. Counts are of a phase, a loop of the round: it is recognized by the
name of its body, a `jax.named_scope` in PHASES.
"""

from __future__ import annotations

import functools
import re
import sys
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import jax

from semisfl_jax.config import command_line
from semisfl_jax.core import machine
from semisfl_jax.core.errors import UserError, size
from semisfl_jax.preview import __main__ as preview
from semisfl_jax.preview import program, targets

PHASES = ('supervised_step', 'cross_entity_iteration', 'local_step')
AHEAD = 'views_of_'  # begins the name of the views of several steps at once
REST = ''  # what is outside of these loops
_NAMES = {
    'supervised_step': 'a supervised step',
    'cross_entity_iteration': 'a cross-entity iteration',
    'local_step': "a client's step",
    REST: 'the rest of the round',
}

# Operations that launch nothing: they name, group or await values, or move them beside the computation.
_SILENT = {
    'parameter',
    'constant',
    'tuple',
    'get-tuple-element',
    'bitcast',
    'after-all',
    'add-dependency',
    'opt-barrier',
    'partition-id',
    'replica-id',
    'domain',
}
_MOVES = {'copy-start', 'slice-start', 'dynamic-slice-start', 'dynamic-update-slice-start'}
_SILENT_CALLS = {'AllocateBuffer', 'AssumeGatherIndicesInBound', 'Sharding', 'SPMDFullToShardShape'}
_IN_ONE_KERNEL = 'xla_cpu_small_call="true"'  # a small loop, such as that of a random number, that a CPU calls at once
_COLLECTIVES = {'all-reduce', 'all-gather', 'reduce-scatter', 'all-to-all', 'collective-permute'}
_BITS = {'pred': 8, 'token': 0}

_COMPUTATION = re.compile(r'^(ENTRY )?%?([\w.\-]+) .*\{$')
_INSTRUCTION = re.compile(r'^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$')
_CALLED = re.compile(
    r'\b(?:calls|to_apply|true_computation|false_computation|called_computations)=\{?(%[\w.\-]+(?:, %[\w.\-]+)*)'
)
_BRANCHES = re.compile(r'\bbranch_computations=\{([^}]*)\}')
_BODY = re.compile(r'\bbody=%?([\w.\-]+)')
_CONDITION = re.compile(r'\bcondition=%?([\w.\-]+)')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_NAME = re.compile(r'op_name="([^"]*)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_ARRAY = re.compile(r'\b([a-z]\w*)\[([\d,]*)\]')
_GROUPS = re.compile(r'\b(feature|batch)_group_count=(\d+)')


class Instruction(NamedTuple):
    """One line of the text."""

    kind: str  # opcode
    type: str  # of its result
    attributes: str  # everything after the opcode

    @property
    def name(self) -> str:
        """Where it comes from in the program, 'jit(round_)/while/body/…'; '' if unknown."""
        match = _NAME.search(self.attributes)
        return match[1] if match else ''


class Module(NamedTuple):
    """A program."""

    computations: dict[str, list[Instruction]]
    entry: str


class Count(NamedTuple):
    """What runs once in a computation: one iteration of a loop, say."""

    kernels: int  # launches, those of loops inside times their iterations
    products: Counter  # kind of a convolution or product -> how many
    collectives: Counter  # kind -> how many
    bytes: Counter  # kind of a collective -> bytes of its results on one device
    open_loops: int  # loops inside of unknown length, of which one iteration is counted


def parse(text: str) -> Module:
    """Reads a program.

    Raises:
      ValueError: it has no entry.
    """
    computations: dict[str, list[Instruction]] = {}
    entry, current = '', None
    for line in text.splitlines():
        if line.startswith('}'):
            current = None
        elif current is not None and (match := _INSTRUCTION.match(line)):
            current.append(_instruction(match[2]))
        elif match := _COMPUTATION.match(line):
            current = computations.setdefault(match[2], [])
            entry = match[2] if match[1] else entry
    if not entry:
        raise ValueError('not the text of a compiled program: it has no ENTRY')
    return Module(computations, entry)


def phases(module: Module) -> dict[str, Count]:
    """The count of one iteration of every phase that the program has, and under REST that of everything else."""
    loops = {phase: _loops_of(module, phase) for phase in PHASES}
    bodies = {_body(loop) for of_phase in loops.values() for loop in of_phase}
    counter = functools.partial(_count, module, bodies)
    counts = {
        phase: max((counter(_body(loop)) for loop in of_phase), key=lambda count: count.kernels)
        for phase, of_phase in loops.items()
        if of_phase
    }
    return counts | {REST: counter(module.entry)}


def _instruction(text: str) -> Instruction:
    end = _closing(text) if text.startswith('(') else text.index(' ')
    kind, _, attributes = text[end:].strip().partition('(')
    return Instruction(kind, text[:end], attributes)


def _closing(text: str) -> int:
    """The place after the parenthesis that closes the first one."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == '(') - (letter == ')')
        if not depth:
            return place + 1
    return len(text)


def _body(loop: Instruction) -> str:
    match = _BODY.search(loop.attributes)
    assert match, loop
    return match[1]


def _trips(module: Module, loop: Instruction) -> int:
    """How often the body of a loop runs; 0: not known in advance.

    Some compilers write it down, others leave it in the condition: a counter from 0, as all loops of JAX have, is less
    than a constant.
    """
    if match := _TRIPS.search(loop.attributes):
        return int(match[1])
    condition = _CONDITION.search(loop.attributes)
    instructions = module.computations.get(condition[1], []) if condition else []
    constants = [instruction for instruction in instructions if instruction.kind == 'constant']
    ascends = any('direction=LT' in instruction.attributes for instruction in instructions)
    number = re.match(r'(\d+)\)', constants[0].attributes) if len(constants) == 1 and ascends else None
    return int(number[1]) if number else 0


def _called(instruction: Instruction) -> list[str]:
    """Computations that run once, at most, where this instruction stands; the body of a loop is none of them."""
    groups = [*_CALLED.findall(instruction.attributes), *_BRANCHES.findall(instruction.attributes)]
    return [name.strip().lstrip('%') for group in groups for name in group.split(',') if name.strip()]


def _directly(module: Module, name: str) -> Iterator[Instruction]:
    """All instructions of a computation and of those that it calls, but not of loops inside."""
    for instruction in module.computations.get(name, ()):
        yield instruction
        for called in _called(instruction):
            yield from _directly(module, called)


def _loops_of(module: Module, phase: str) -> list[Instruction]:
    """The loops whose iterations are those of a phase: the innermost around its instructions."""

    def search(name: str) -> list[Instruction]:
        loops = []
        for loop in _directly(module, name):
            if loop.kind != 'while' or phase in loop.name:  # a loop inside the phase
                continue
            inside = search(_body(loop))
            loops += inside or ([loop] if _phase_of(module, loop) == phase else [])
        return loops

    return search(module.entry)


def _phase_of(module: Module, loop: Instruction) -> str:
    """The phase that most instructions of a loop bear the name of, '' if there are more of views that are made ahead.

    Not simply any of them: phases share code, and the compiler may merge what is equal.
    """
    names = [instruction.name for instruction in _directly(module, _body(loop))]
    numbers = {scope: sum(scope in name for name in names) for scope in (*PHASES, AHEAD)}
    most = max(numbers, key=lambda scope: numbers[scope])
    return most if most != AHEAD and numbers[most] else ''


def _count(module: Module, apart: set[str], name: str) -> Count:
    """The count of a computation, without loops whose bodies are counted `apart`."""
    kernels, open_loops = 0, 0
    products, collectives, sizes = Counter[str](), Counter[str](), Counter[str]()

    def add(count: Count, times: int) -> None:
        nonlocal kernels, open_loops
        kernels += times * count.kernels
        open_loops += count.open_loops
        for whole, part in zip((products, collectives, sizes), count[1:4], strict=True):
            whole.update({kind: times * number for kind, number in part.items()})

    for instruction in module.computations.get(name, ()):
        if instruction.kind == 'while':
            if _body(instruction) not in apart:
                trips = _trips(module, instruction)
                add(_count(module, apart, _body(instruction)), trips or 1)
                open_loops += not trips
        elif instruction.kind == 'conditional':
            add(max((_count(module, apart, branch) for branch in _called(instruction)), key=lambda c: c.kernels), 1)
        elif _IN_ONE_KERNEL in instruction.attributes:
            kernels += 1
        elif instruction.kind in ('call', 'async-start'):
            for called in _called(instruction):
                add(_count(module, apart, called), 1)
        else:
            kernels += _launches(instruction)
            inside = [instruction]
            if instruction.kind == 'fusion':
                inside = [part for called in _called(instruction) for part in _directly(module, called)]
            products.update(product for part in inside if (product := _product(part)))
            kind = instruction.kind.removesuffix('-start')
            if kind in _COLLECTIVES:
                collectives[kind] += 1
                sizes[kind] += _result_bytes(instruction)
    return Count(kernels, products, collectives, sizes, open_loops)


def _launches(instruction: Instruction) -> bool:
    target = _TARGET.search(instruction.attributes) if instruction.kind == 'custom-call' else None
    silent = instruction.kind in _SILENT | _MOVES or instruction.kind.endswith('-done')
    return not silent and not (target and target[1] in _SILENT_CALLS)


def _product(instruction: Instruction) -> str:
    """The kind of a convolution or of a product of matrices, '' if it is neither.

    A library may compute it (`cuDNN …`); TPUs compute products as convolutions, told apart by where they come from.
    """
    kind, library = instruction.kind, ''
    if kind == 'custom-call':
        match = _TARGET.search(instruction.attributes)
        target = match[1] if match else ''
        if not (matched := re.match(r'__(cudnn|cublas|onednn)\$(.*)', target)):
            return ''
        library = {'cudnn': 'cuDNN', 'cublas': 'cuBLAS', 'onednn': 'oneDNN'}[matched[1]] + f' {matched[2]}'
        kind = 'convolution' if 'conv' in target else 'dot'
    if kind not in ('convolution', 'dot'):
        return ''
    if kind == 'dot' or 'dot_general' in instruction.name.rpartition('/')[2]:
        return library or 'product'
    way = 'backward' if 'transpose(' in instruction.name else 'forward'
    groups = [f'{number} {axis} groups' for axis, number in _GROUPS.findall(instruction.attributes) if number != '1']
    return ', '.join([f'{library or "convolution"} ({way})', *groups])


def _result_bytes(instruction: Instruction) -> int:
    """Bytes of the result of a collective; one that starts also returns its operands."""
    sizes = [_array_bytes(*array) for array in _ARRAY.findall(instruction.type)]
    if instruction.kind in ('all-gather-start', 'reduce-scatter-start', 'all-to-all-start'):
        return sum(sizes[len(sizes) // 2 :])
    return sizes[1] if instruction.kind == 'collective-permute-start' else sum(sizes)


def _array_bytes(element: str, shape: str) -> int:
    bits = _BITS.get(element) if element in _BITS else int((re.search(r'\d+', element) or ['0'])[0])
    count = 1
    for side in filter(None, shape.split(',')):
        count *= int(side)
    return (bits or 0) * count // 8


def report(counts: dict[str, Count]) -> str:
    """What the round launches, computes and exchanges, by phase."""
    lines = []
    for phase, count in counts.items():
        open_loops = ', and one iteration of each loop of unknown length' if count.open_loops else ''
        lines.append(f'{_NAMES[phase]}: {count.kernels:,} kernels{open_loops}')
        lines += [f'  {number:>4} {kind}' for kind, number in sorted(count.products.items())]
        sizes = {kind: size(count.bytes[kind]) for kind in count.collectives}
        lines += [f'  {number:>4} {kind}, {sizes[kind]}' for kind, number in sorted(count.collectives.items())]
    return '\n'.join(lines)


def _compile(argv: list[str]) -> None:
    asked = preview.request(argv)
    with machine.programs_for(asked.target.platform):
        devices = targets.devices(asked.target, asked.config.parallel.devices)
        experiment = program.shape_experiment(asked.config, devices.mesh)
        try:
            round_ = program.compile_round(experiment, asked.target, devices)
        except program.Refused as error:
            raise UserError(f'the round does not compile: {error}') from error
    print(report(phases(parse(round_.text))))


def main(argv: list[str]) -> int:
    """Runs the command line `argv` (program name first); returns the exit status."""
    jax.config.update('jax_platforms', 'cpu')
    return command_line.main(argv, __doc__, lambda: _compile(argv))


if __name__ == '__main__':
    sys.exit(main(sys.argv))
