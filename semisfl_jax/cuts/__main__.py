"""Prices every cut of a model before training: python -m semisfl_jax.cuts --config=FILE [--config.KEY=VALUE ...]

What a client sends, receives, computes and holds in a round, and how long a round would take on the network of
`config.cost`, for every index at which the model of the configuration can be cut. Prints a table and writes cuts.txt,
cuts.csv, cuts.png and cuts.svg to --workdir, without it to runs/cuts/NAME-MODEL. Needs no data for the sets that come
with a configuration.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from ml_collections import ConfigDict

from semisfl_jax import algorithms, costs, data
from semisfl_jax import config as config_lib
from semisfl_jax.config import command_line, commands
from semisfl_jax.core import file_io
from semisfl_jax.core.errors import UserError
from semisfl_jax.cuts import plot, prices


def check(config: ConfigDict) -> None:
    """Raises UserError for a mistake in the configuration, or a method that does not cut its model."""
    config_lib.check(config)
    method = algorithms.get(config.algorithm)
    if not method.cuts or method.price is None:
        why = 'has no price' if method.cuts else 'does not cut its model'
        others = sorted(other.name for other in algorithms.METHODS.values() if other.cuts and other.price)
        raise UserError(f"config.algorithm='{method.name}' {why}; use one of {', '.join(others)}")


def pricing(config: ConfigDict, tell: Callable[[str], None] = lambda line: None) -> prices.Pricing:
    """The prices of all cuts under a configuration; `tell` is told which one comes next.

    Raises:
      UserError: as `check`.
    """
    check(config)
    config, method = config_lib.resolve(config), algorithms.get(config.algorithm)
    image_shape, num_classes = data.shape(config.data)
    model = costs.build(config, method, num_classes, image_shape, config_lib.hparams(config))
    return prices.price_all(model, config.k_s, config.data.name, method.teacher_at_clients, tell)


def main(argv: list[str]) -> int:
    """Runs the command line `argv` (program name first); returns the exit status."""
    return commands.main(argv, __doc__, lambda: _price(command_line.parse(argv)))


def _price(command: command_line.Command) -> None:
    """Prices the cuts of a configuration's model, prints the table, and writes it with its plot."""
    name = f'{command.name}-{command.config.model.name}'
    folder = file_io.expand_home(command.workdir or f'runs/cuts/{name}', '--workdir')
    check(command.config)  # before a folder is made
    with file_io.writing('--workdir'):
        folder.mkdir(parents=True, exist_ok=True)
    priced = pricing(command.config, lambda line: print(line, file=sys.stderr, flush=True))
    text = prices.as_text(priced)
    print(text)
    with file_io.writing('--workdir'):
        file_io.write(folder / 'cuts.txt', f'{text}\n'.encode())
        file_io.write(folder / 'cuts.csv', prices.as_csv(priced).encode())
        try:
            plot.plot(priced, folder)
        except UserError as error:  # the table is written, with or without matplotlib
            print(f'no plot: {error}')
    print(f'written to {folder}')


if __name__ == '__main__':
    sys.exit(main(sys.argv))
