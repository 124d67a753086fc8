"""What a run holds in memory at the least, from shapes alone: nothing is loaded, made or compiled.

Every share is certain to be there, at the same time as the others. What a program holds on its way, such as the
features between layers, is known when it is compiled, and not counted here.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from semisfl_jax.data import Outline
from semisfl_jax.hparams import HParams

INDEX = 4  # bytes of a row's number


class Share(NamedTuple):
    """A part of the memory of a run."""

    what: str
    count: int  # bytes
    on_host: bool = False  # not on the device, which on a CPU is the same memory


class Method(NamedTuple):
    """What has to be known of a method."""

    state: Any  # shapes of what it carries from round to round
    uses_clients: bool
    reads_sets: bool  # a client reads all its images
    server_trains: bool
    uploads: Any  # shapes of what each client of a round holds of the model
    rows_at_once: int = 0  # images of a batch that is not one of the configuration's


def shares(config: ConfigDict, images: Outline, hparams: HParams, method: Method, trials: int = 1) -> list[Share]:
    """The parts of a run, those on one device where there are several.

    Args:
      config: resolved.
      images: the data set.
      hparams: of the configuration.
      method: its shapes.
      trials: R, the number of seeds.
    """
    devices = max(1, config.parallel.devices)
    own_trials = -(-trials // devices) if trials > 1 else 1
    active = config.federation.num_active if trials > 1 else -(-config.federation.num_active // devices)
    carried, queue, kept = (
        own_trials * size_of(part)
        for part in (method.state, getattr(method.state, 'memory', ()), getattr(method.state, 'clients', ()))
    )
    found = [
        Share('images', _images(config, images, method)),
        Share('images in host memory', images.in_memory * images.pixels * (images.train + images.test), on_host=True),
        Share('models of the server', carried - queue - kept),
        Share('queue', queue),
        Share('what clients keep', kept),
        Share('tables of who holds what', own_trials * INDEX * config.federation.num_clients * images.most_held),
        Share('models in training', max(_server_steps(hparams, method), _client_steps(active, method))),
        Share('losses that K_s is adapted to', own_trials * _windows(config), on_host=True),
        Share('batches', _batches(config, images, method)),
    ]
    if method.uses_clients and not method.reads_sets:
        rows = own_trials * active * _rows_of_client(hparams, images)
        streamed = rows * images.pixels if config.data.residency == 'host' else 0
        found += [Share('rows and images of a round', streamed + rows * INDEX)]
    return [share for share in found if share.count]


def size_of(tree: Any) -> int:
    """Bytes of arrays or of their shapes."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _images(config: ConfigDict, images: Outline, method: Method) -> int:
    """Those on the device: the test set, and what server and clients hold."""
    train = images.train
    if config.data.residency == 'host' or not method.uses_clients:
        train = min(train, max(0, config.data.num_labeled - max(0, config.data.client_labels)))
    return images.pixels * (train + images.test)


def _server_steps(hparams: HParams, method: Method) -> int:
    """The gradient of supervised training, and its momentum where that is not carried from round to round."""
    if not method.server_trains:
        return 0
    carried = size_of(getattr(method.state, 'momentum', ()))
    moments = 0 if carried else {'adam': 2, 'sgd': int(hparams.momentum > 0)}[hparams.optimizer]
    return (1 + moments) * size_of([piece['params'] for piece in method.state.student])


def _client_steps(active: int, method: Method) -> int:
    """What the clients of a round have made of the model, before it is averaged."""
    return active * size_of(method.uploads) if method.uses_clients else 0


def _rows_of_client(hparams: HParams, images: Outline) -> int:
    """Images that a client may draw in a round, K_u batches or some passes, of which more cannot be known here."""
    if not hparams.local.epochs:
        return hparams.k_u * hparams.batch_size
    return hparams.local.epochs * (1 if hparams.labeled_rows == hparams.batch_size else max(1, images.most_held))


def _windows(config: ConfigDict) -> int:
    """Means over windows of rounds (`frequency.FrequencyState`)."""
    return 4 * 8 * (config.frequency.horizon // config.frequency.period + 1)


def _batches(config: ConfigDict, images: Outline, method: Method) -> int:
    """One batch in floating-point numbers: of the server, of one client, or of evaluation, whichever is largest."""
    rows = [method.rows_at_once, min(config.eval_batch_size, images.test)]
    rows += [config.server_batch_size] if method.server_trains else []
    if method.uses_clients and not method.reads_sets:
        rows += [config.batch_size]
    return (2 if config.precision == 'bfloat16' else 4) * images.pixels * max(rows)
