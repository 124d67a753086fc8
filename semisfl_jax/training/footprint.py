"""A lower bound on the memory of a run, from shapes alone: nothing is loaded, allocated or compiled.

Every share is certain to be allocated, at the same time as the others. Temporary memory of a program, such as the
features between layers, is known once it is compiled, and not counted here.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from semisfl_jax import algorithms, data, rng, trees
from semisfl_jax import config as config_lib
from semisfl_jax.config import devices as devices_lib
from semisfl_jax.config import keys
from semisfl_jax.data import Outline
from semisfl_jax.hparams import HParams, moments_kept
from semisfl_jax.training import contract, networks
from semisfl_jax.types import Views

INDEX = 4  # bytes of a row index


class Share(NamedTuple):
    """A part of the memory of a run."""

    what: str
    nbytes: int
    on_host: bool = False  # rather than on the device; on a CPU both are the same memory


class MethodShapes(NamedTuple):
    """What the footprint depends on in a method."""

    state: Any  # shapes of the state carried from round to round
    uses_clients: bool
    reads_sets: bool  # a client reads all its images
    server_trains: bool
    uploads: Any  # shapes of the part of the model that each client of a round holds; of all dense tasks
    tasks: int = 1  # dense tasks, of which a client has one
    rows_at_once: int = 0  # images of a batch whose size is not a key of the configuration


def of_run(config: ConfigDict, trials: int = 1, loaded: Outline | None = None) -> list[Share]:
    """A lower bound on the memory of a run, from shapes alone; empty if the shapes of the data set are unknown.

    Args:
      config: resolved.
      trials: number of seeds.
      loaded: outline of the data set once loaded. `config` may ask for another image size or number of images.
    """
    outline = data.outline(config.data)
    if loaded:
        nominal = outline
        image = nominal.image if nominal else data.final_shape(loaded.image, config.data)
        outline = loaded._replace(image=image)
        if config.data.fake and nominal:
            outline = outline._replace(train=nominal.train, test=nominal.test)
    if outline is not None and config.data.eval_split == 'validation':
        outline = outline._replace(test=config.data.num_validation, original=None)
    if outline is None or set(config.data.tasks) - outline.outputs.keys():  # loaded data are needed to know
        return []
    method, hparams = algorithms.get(config.algorithm), config_lib.hparams(config)
    unseen = Views(*[lambda *arguments: arguments[-1]] * len(Views._fields))  # the state does not depend on them
    built = algorithms.build(config.algorithm, networks.build(config, outline, read_weights=False), unseen, hparams)
    state = jax.eval_shape(contract.checked(method.name, built).init, rng.root(0))
    uploads_whole_model = method.separate_clients and not method.sequential(keys.flat(config))
    method_shapes = MethodShapes(
        state=state,
        uses_clients=method.clients,
        reads_sets=method.reads == 'sets',
        server_trains=hparams.server_trains,
        uploads=state.student if uploads_whole_model else state.student.bottom,
        tasks=max(1, len(config.data.tasks)),
        rows_at_once=method.rows_at_once(hparams.options),
    )
    return shares(config, outline, hparams, method_shapes, trials)


def shares(config: ConfigDict, images: Outline, hparams: HParams, method: MethodShapes, trials: int = 1) -> list[Share]:
    """The shares of a run's memory; with several devices, those of one device.

    Args:
      config: resolved.
      images: the data set.
      hparams: of the configuration.
      method: its shapes.
      trials: R, the number of seeds.
    """
    devices = devices_lib.count(config)
    trials_per_device = -(-trials // devices) if trials > 1 else 1
    active = config.federation.num_active if trials > 1 else -(-config.federation.num_active // devices)
    carried, queue, client_state = (
        trials_per_device * trees.nbytes(part)
        for part in (method.state, getattr(method.state, 'memory', ()), getattr(method.state, 'clients', ()))
    )
    trained, evaluated = _images(config, images, method, trials)
    of_maps = trained * math.prod(images.image[:2]) + evaluated * math.prod(images.original or images.image[:2])
    all_shares = [
        Share('images', (trained + evaluated) * images.pixels),
        Share('maps of the tasks', len(config.data.tasks) * of_maps),
        Share('images in host memory', images.in_memory * images.pixels * (images.train + images.test), on_host=True),
        Share('models of the server', carried - queue - client_state),
        Share('queue', queue),
        Share('client state', client_state),
        Share(
            'index tables of the clients', trials_per_device * INDEX * config.federation.num_clients * images.most_held
        ),
        Share('models in training', max(_server_steps(hparams, method), _client_steps(active, method))),
        Share('loss history of the K_s controller', trials_per_device * _windows(config), on_host=True),
        Share('batches', _batches(config, images, method)),
    ]
    if method.uses_clients and not method.reads_sets:
        rows = trials_per_device * active * _rows_of_client(hparams, images)
        streamed = rows * images.pixels if config.data.residency == 'host' else 0
        all_shares += [Share('rows and images of a round', streamed + rows * INDEX)]
    return [share for share in all_shares if share.nbytes]


def _images(config: ConfigDict, images: Outline, method: MethodShapes, trials: int) -> tuple[int, int]:
    """Numbers of images on the device: the images of server and clients, and those of evaluation."""
    train, evaluated = max(0, images.train - config.data.num_validation), images.test
    if config.data.eval_split == 'validation':
        evaluated *= trials if config.data.partition_seed == -1 and not config.data.partition_file else 1
    at_server = max(0, config.data.num_labeled - max(0, config.data.client_labels))
    if config.data.client_labels == -1 and not config.k_s:  # none are set aside for the server
        at_server = 0
    if config.data.num_unlabeled:
        train = min(train, config.data.num_unlabeled + (at_server if config.k_s else 0))
    if config.data.residency == 'host' or not method.uses_clients:
        train = min(train, at_server)
    return train, evaluated


def _server_steps(hparams: HParams, method: MethodShapes) -> int:
    """Bytes of the gradient of supervised training, and of its momentum if not carried from round to round."""
    if not method.server_trains:
        return 0
    carried = trees.nbytes(getattr(method.state, 'opt_state', ()))
    moments = 0 if carried else moments_kept(hparams)
    return (1 + moments) * trees.nbytes([piece['params'] for piece in method.state.student])


def _client_steps(active: int, method: MethodShapes) -> int:
    """Bytes of the models that the clients of a round have trained, before averaging."""
    return active * trees.nbytes(method.uploads) // method.tasks if method.uses_clients else 0


def _rows_of_client(hparams: HParams, images: Outline) -> int:
    """Images that a client may draw in a round: K_u batches, or a lower bound for whole passes."""
    if not hparams.local.epochs:
        return hparams.k_u * hparams.batch_size
    return hparams.local.epochs * (1 if hparams.labeled_rows == hparams.batch_size else max(1, images.most_held))


def _windows(config: ConfigDict) -> int:
    """Bytes of the means over windows of rounds (`frequency.FrequencyState`)."""
    return 4 * 8 * (config.frequency.horizon // config.frequency.period + 1)


def _batches(config: ConfigDict, images: Outline, method: MethodShapes) -> int:
    """Bytes of one floating-point batch: of the server, of one client, or of evaluation, whichever is largest."""
    rows = [method.rows_at_once, min(config.eval_batch_size, images.test)]
    rows += [config.server_batch_size] if method.server_trains else []
    if method.uses_clients and not method.reads_sets:
        rows += [config.batch_size]
    return (2 if config.precision == 'bfloat16' else 4) * images.pixels * max(rows)
