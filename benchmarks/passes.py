"""Every pass of every layer of a model, alone: this project's form for CPUs beside PyTorch on the same numbers.

    python -m benchmarks.passes                      the CNN's and AlexNet's layers; two minutes on 2 idle cores
    python -m benchmarks.passes --models=cnn --no_torch

A client's batch for convolutions, all clients' rows for the server's dense layers, as in a cross-entity iteration.
Passes: forward, gradient of the input (dx), gradient of the weights (dw). This project's stand in a loop inside one
program, as in a round; PyTorch's convolutions are channels last, its best mode. GFLOP/s count operations of the
definition, so a form with less arithmetic (Winograd) may exceed the machine's rate. It says where the time of
`benchmarks.run` goes, not how long an iteration is: what lies between the passes is left out.
"""

from __future__ import annotations

import importlib.util
import itertools
import json

import jax
from absl import flags

from benchmarks import commands, report
from benchmarks.layers import LAYERS, measure
from semisfl_jax.core.errors import UserError

flags.DEFINE_list('models', list(LAYERS), 'whose layers: ' + ', '.join(LAYERS))
flags.DEFINE_integer('repeats', 7, 'measurements of every pass; the median counts', lower_bound=1)
flags.DEFINE_string('out', 'benchmark_results', 'folder for passes.json and passes.md')
flags.DEFINE_bool('no_torch', False, 'measure this project alone')
flags.register_validator(
    'models', lambda names: names and set(names) <= set(LAYERS), 'choose among ' + ', '.join(LAYERS)
)


def table(results: list[dict]) -> str:
    """Markdown: milliseconds and GFLOP/s of both sides."""
    lines = ['| layer | pass | ms | GFLOP/s | PyTorch, ms | GFLOP/s |', '|---|---|---|---|---|---|']
    for result in results:
        for name, seconds in result['seconds'].items():
            cells = [
                f'{1e3 * s:.2f} | {result["flops"] / s / 1e9:.0f}' if s else ' | '
                for s in (seconds['ours'], seconds.get('torch'))
            ]
            lines.append(f'| {result["layer"]} | {name} | {" | ".join(cells)} |')
    return '\n'.join(lines) + '\n'


def main() -> None:
    values = flags.FLAGS
    if not values.no_torch and importlib.util.find_spec('torch') is None:
        raise UserError("torch is not installed: pip install -e '.[benchmark]', or measure with --no_torch")
    jax.config.update('jax_platforms', 'cpu')
    out = commands.folder(values.out)
    layers = list(itertools.chain.from_iterable(LAYERS[name] for name in dict.fromkeys(values.models)))
    results = []
    for number, layer in enumerate(layers, start=1):
        print(f'[{number}/{len(layers)}] {layer} …', flush=True)
        seconds = {name: measure(layer, name, values.repeats, not values.no_torch) for name in layer.passes}
        results.append({'layer': str(layer), 'flops': layer.flops, 'seconds': seconds})
    (out / 'passes.json').write_text(json.dumps({'machine': report.machine(), 'layers': results}, indent=1) + '\n')
    (out / 'passes.md').write_text(table(results))
    print('\n' + table(results))


if __name__ == '__main__':
    commands.run(main, __doc__)
