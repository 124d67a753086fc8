"""Prices every cut of a model before training: python -m semisfl_jax.costs --config=FILE [--config.KEY=VALUE ...]

What a client sends, receives, computes and holds in a round, and how long a round would take on the network of
`config.cost`, for every index at which the model of the configuration can be cut. Prints a table and writes cuts.txt,
cuts.csv, cuts.png and cuts.svg to --workdir, without it to costs/NAME-MODEL. Needs no data for the sets that come with
a configuration.
"""

from __future__ import annotations

import sys
from pathlib import Path

from semisfl_jax import command_line, data, hparams
from semisfl_jax import config as config_lib
from semisfl_jax.costs import cuts, cuts_plot, rounds
from semisfl_jax.costs.methods import SPLIT
from semisfl_jax.errors import UserError


def pricing(config) -> cuts.Pricing:
    """The prices of all cuts under a configuration.

    Raises:
      UserError: a mistake in the configuration, or a method that does not cut its model.
    """
    config_lib.check(config)
    config = config_lib.resolve(config)
    if config.algorithm not in SPLIT:
        raise UserError(
            f"config.algorithm='{config.algorithm}' does not cut its model; price {', '.join(sorted(SPLIT))}"
        )
    image_shape, num_classes = data.shape(config.data)
    model = rounds.build(config, num_classes, image_shape, hparams.from_config(config))
    return cuts.price_all(model, config.k_s, config.data.name)


def main(argv: list[str]) -> int:
    """Runs the command line `argv` (program name first); returns the exit status."""
    if {'-h', '--help'} & set(argv):
        print(__doc__)
        return 0
    try:
        command = command_line.parse(argv)
        priced = pricing(command.config)
        folder = Path(command.workdir or f'costs/{command.name}-{command.config.model.name}')
        text = cuts.as_text(priced)
        print(text)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / 'cuts.txt').write_text(text + '\n')
            (folder / 'cuts.csv').write_text(cuts.as_csv(priced))
            cuts_plot.plot(priced, folder)
        except OSError as error:
            raise UserError(f'cannot write to {folder} ({error}); choose another --workdir') from error
        except ModuleNotFoundError as error:
            if error.name != 'matplotlib':
                raise
            print("no plot: matplotlib is not there (pip install -e '.[plots]')")
        print(f'written to {folder}')
    except UserError as error:
        print('error:', ' '.join(str(error).split()), file=sys.stderr)
        return 2
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv))
