"""Measures which form of a run is fastest here: python -m semisfl_jax.tune --config=FILE [--config.KEY=VALUE ...]

    python -m semisfl_jax.tune --config=configs/svhn.py
    python -m semisfl_jax.tune --list

A form is a value of federation.client_map and one of model.convolution; all compute the same up to rounding. Where a
configuration has 'auto', new runs of it on this machine take what was measured here; a run that resumes keeps its form.
Measured is a short round of the configuration, in every form that its 'auto' leaves open, one after another in turns,
on synthetic images. Needs no data for the sets that come with a configuration. Takes about a minute on an
idle machine; a program that is being compiled is not interrupted.

  --config.KEY=VALUE    as for a run; a choice holds for its method, model, batches, clients and precision
  --seconds=N           what the measurement may take, 60 unless given; forms that it has no time for are named
  --list                shows all choices, and measures nothing
  --forget              forgets the choice for --config, or without it all choices, and measures nothing
"""

from __future__ import annotations

import datetime
import itertools
import statistics
import sys
from collections.abc import Sequence
from typing import NamedTuple

import jax
from absl import flags
from ml_collections import ConfigDict

from semisfl_jax import commands, data, forms, machine
from semisfl_jax import config as config_lib
from semisfl_jax.config import chosen, command_line, keys, tuned
from semisfl_jax.config.tuned import Choice
from semisfl_jax.errors import UserError
from semisfl_jax.forms import Form
from semisfl_jax.parallel import compilation
from semisfl_jax.tune import measure, passes, report, rounds, store
from semisfl_jax.tune.measure import Measured
from semisfl_jax.wording import shorten

_FEW = 8  # images on which a convolution must not be much slower than the fastest to be measured in a round


class Request(NamedTuple):
    """What the user asked for."""

    config: ConfigDict | None  # resolved
    seconds: float
    show: bool
    forget: bool


def request(argv: list[str]) -> Request:
    """Reads the command line `argv`, program name first.

    Raises:
      UserError: a mistake in it or in the configuration.
    """
    values, allowed = flags.FlagValues(), 'a number of seconds above 0, up to a day'
    flags.DEFINE_float('seconds', 60.0, allowed, flag_values=values)
    flags.register_validator('seconds', lambda seconds: 0 < seconds <= 86400, allowed, flag_values=values)
    for name in ('list', 'forget'):
        flags.DEFINE_boolean(name, False, 'given without a value', flag_values=values)
    others = commands.own_flags(values, argv)
    if values.list and values.forget:
        raise UserError('--list and --forget are two commands; give one of them')
    if values.list or (values.forget and len(others) == 1):
        if len(others) > 1:
            raise UserError(f"--list shows all choices; leave '{shorten(others[1])}' out")
        return Request(None, values.seconds, values.list, values.forget)
    command = command_line.parse(others)
    if command.workdir:
        raise UserError(f"--workdir='{command.workdir}': tune writes no run folder; leave it out")
    config = command.config
    if coordinator := config.parallel.coordinator:
        raise UserError(f"config.parallel.coordinator='{coordinator}': tune is one process; leave it out")
    config_lib.check(config)
    return Request(config_lib.resolve(config), values.seconds, False, values.forget)


def candidates(config: ConfigDict) -> list[Form]:
    """The forms that a configuration (resolved) leaves open, the usual one of this device first.

    Raises:
      UserError: it leaves none open.
    """
    flat, used = keys.flat(config), chosen.used(config)
    open_keys = [key for key in used if flat[key] == chosen.AUTO]
    if not open_keys:
        given = ' and '.join(f'{key}={flat[key]}' for key in used)
        raise UserError(f"config.{given}: there is nothing to choose; leave one of them at 'auto'")
    usual = usual_form(config)
    values = [
        [value for value in tuned.NAMES[key] if value != chosen.AUTO] if key in open_keys else [own]
        for key, own in zip(forms.KEYS, usual, strict=True)
    ]
    pairs = [Form(*pair) for pair in itertools.product(*values)]
    return sorted(pairs, key=lambda form: sum(a != b for a, b in zip(form, usual, strict=True)))


def usual_form(config: ConfigDict) -> Form:
    """What 'auto' means for a configuration (resolved) on this device without a measurement."""
    flat, used = keys.flat(config), chosen.used(config)
    form, _ = forms.of_device(machine.device())
    return Form(
        *(
            best if key in used and flat[key] == chosen.AUTO else flat[key]
            for key, best in zip(forms.KEYS, form, strict=True)
        )
    )


def run(config: ConfigDict, seconds: float) -> Choice:
    """Measures the forms of a configuration (resolved), prints the table and returns what to store.

    Raises:
      UserError: there is nothing to choose, or no form can be computed.
    """
    device, clock = machine.device(), measure.clock(seconds)
    open_forms, usual = candidates(config), usual_form(config)
    if config.compilation_cache:
        compilation.keep(data.default_cache_dir() / 'compiled')
    shared = rounds.prepare(config)
    seconds_per_image = _probe(shared, open_forms, clock)
    promising, slow = measure.promising(open_forms, seconds_per_image)
    shared = rounds.lengthen(shared, min(seconds_per_image.values()))
    print(report.title(config, shared.config, device), end='\n\n', flush=True)

    measured = measure.measure(promising, lambda form: rounds.compile_round(shared, form), clock, _say)
    measured = Measured(measured.times, {**measured.left_out, **slow})
    choice = measure.best(measured.times, usual)
    print('\n' + report.table(measured, choice, usual))
    medians = {str(form): round(1e3 * statistics.median(times), 3) for form, times in measured.times.items()}
    today = datetime.date.today().isoformat()
    return Choice(device, jax.__version__, tuned.settings(config), choice, medians, today)


def _probe(shared: rounds.Shared, open_forms: Sequence[Form], clock: measure.Clock) -> dict[str, float]:
    """Seconds per image of every convolution, in passes of a client's bottom, before a whole round may take minutes."""
    image, times = shared.dataset.train_images.shape[1:], {}
    for form in {form.convolution: form for form in open_forms}.values():
        _say(f'a few images: convolution {form.convolution}, {clock}')
        once = passes.compile_passes(rounds.model_of(shared, form), 'loop', image, 1, _FEW, shared.config.precision, 2)
        times[form.convolution] = measure.lowest(once) / _FEW
    return times


def _say(line: str) -> None:
    print(line, flush=True)


def tune(asked: Request) -> None:
    """Does what was asked, and prints it.

    Raises:
      UserError: as `run`, or the choices cannot be read or written.
    """
    if asked.show:
        print(report.listed(tuned.read(), machine.device(), jax.__version__))
        return
    if asked.config is None:
        store.clear()
        print(f'all choices are forgotten: {tuned.file()} is gone')
        return
    if asked.forget:
        place = tuned.place(asked.config, machine.device())
        count = store.forget(lambda choice: choice.place == place)
        print('its choice is forgotten' if count else 'there was no choice for this configuration on this device')
        return
    tuned.read()  # a broken file is better found before the measurement
    choice = run(asked.config, asked.seconds)
    store.add(choice)
    print(
        f'\nstored in {tuned.file()}: new runs with these settings take {choice.form} on this device, with JAX '
        f'{choice.jax}\n(python -m semisfl_jax.tune --list shows what is stored; a run that resumes keeps its form)'
    )


def main(argv: list[str]) -> int:
    """Runs the command line `argv` (program name first); returns the exit status."""
    return commands.main(argv, __doc__, lambda: tune(request(argv)))


if __name__ == '__main__':
    sys.exit(main(sys.argv))
