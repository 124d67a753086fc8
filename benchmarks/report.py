"""Turns raw measurements into a table."""

from __future__ import annotations

import platform
import statistics

from benchmarks import commands
from semisfl_jax.base.machine import cores, processor

NAMES = {'cnn': 'CNN', 'alexnet': 'AlexNet', 'small_cnn': 'small CNN', 'jax': 'this project', 'torch': 'PyTorch'}


def machine() -> dict:
    """The machine that was measured on, excluding accelerators."""
    return {'platform': platform.platform(), 'processor': processor(), 'cores': cores()}


def rate(case: dict, side: str, task: str) -> list[float]:
    """Images per second of one side of a measured case: median, lowest, highest."""
    images, seconds = case['images'][task], case['seconds'][side][task]
    return [images / value for value in (statistics.median(seconds), max(seconds), min(seconds))]


def matmul_flops(case: dict) -> float:
    """Median operations per second of a large matrix product."""
    return case['facts']['jax']['matmul_flops'] / statistics.median(case['seconds']['jax']['matmul'])


def table(result: dict) -> str:
    """Markdown: one row per model, augmentation, task and side, and the machine and settings measured on."""
    titles = ['model', 'augmentation', 'what', 'side', 'images/s (lowest to highest)', 'ratio', 'ms', 'GFLOP/s']
    titles += ['share of peak', 'peak memory', 'compile s']
    rows = [_row(case, task, side) for case in result['cases'] for task in case['images'] for side in case['facts']]
    return '\n'.join([commands.markdown(titles, rows), '', *_notes(result)]) + '\n'


def _row(case: dict, task: str, side: str) -> list[str]:
    spec = case['case']
    median, low, high = rate(case, side, task)
    flops = case['flops'][task] / case['images'][task] * median
    milliseconds = 1000 * case['images'][task] / median / (spec['k_u'] if task == 'iteration' else 1)
    ratio = f'{median / rate(case, "torch", task)[0]:.2f}' if side == 'jax' and 'torch' in case['facts'] else ''
    memory = case['memory'][side]
    device = f', device {gib(memory["peak_device"])}' if memory['peak_device'] else ''
    compiled = f'{case["facts"][side]["compile_s"][task]:.1f}' if side == 'jax' else ''
    mode = f' ({spec["mode"]})' if side == 'torch' else ''
    return [
        NAMES[spec['model']],
        'yes' if spec['augment'] else 'no',
        task,
        NAMES[side] + mode,
        f'{median:,.0f} ({low:,.0f} to {high:,.0f})',
        ratio,
        f'{milliseconds:,.1f}',
        f'{flops / 1e9:,.0f}',
        f'{flops / matmul_flops(case):.0%}',
        gib(memory['peak_rss']) + device,
        compiled,
    ]


def _notes(result: dict) -> list[str]:
    first, sizes = result['cases'][0], []
    precision = first['case']['precision']
    for case in result['cases']:
        spec = case['case']
        size = f'{NAMES[spec["model"]]}: {spec["clients"]} clients x {spec["batch_size"]}, K_s {spec["k_s"]}, '
        size += f'K_u {spec["k_u"]}, {len(case["seconds"]["jax"]["round"])} repeats'
        sizes += [size] if size not in sizes else []
    peaks = [f'{matmul_flops(case) / 1e9:,.0f}' for case in result['cases']]
    versions = {name: number for facts in first['facts'].values() for name, number in facts['versions'].items()}
    devices = ', '.join(f'{NAMES[side]} on {facts["device"]}' for side, facts in first['facts'].items())
    machine = result['machine']
    return [
        f'{"; ".join(sizes)}. Medians. Peak: large matrix products in {precision}, {", ".join(peaks)} GFLOP/s in '
        'the cases in this order; the share leaves out augmentation, the optimizer and the queue. Memory is of the '
        'main process.',
        f'{devices}; {machine["cores"]} cores, {machine["processor"]}, {machine["platform"]}; precision {precision} '
        '(a CPU has no tf32: it computes float32).',
        ', '.join(f'{name} {number}' for name, number in {'python': result['python'], **versions}.items()) + '.',
    ]


def gib(size: float) -> str:
    """Bytes formatted as GiB."""
    return f'{size / 2**30:.2f} GiB'
