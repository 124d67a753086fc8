"""Builds the objects of a run from its configuration: the one place where data, model and algorithm meet."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from semisfl_jax import algorithms, augment, core, costs, data, models
from semisfl_jax import config as config_lib
from semisfl_jax import tasks as tasks_lib
from semisfl_jax.algorithms.task_model import TaskModel
from semisfl_jax.config import failures, keys
from semisfl_jax.config.resolve import count_devices
from semisfl_jax.core import file_io, frequency, machine, rng
from semisfl_jax.core import hparams as hparams_lib
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.types import Algorithm, Array, Federation, Views
from semisfl_jax.training import checkpoint, checks


class Experiment(NamedTuple):
    """Everything about a run except its state."""

    config: ConfigDict  # resolved
    key: Array  # root key
    dataset: data.Dataset  # whose test images are validation images if these are what it evaluates on
    partition: data.Partition
    federation: Federation | data.HostFederation
    model: Any  # models.SplitModel; with dense tasks a tuple of TaskModel
    method: algorithms.Method
    algorithm: Algorithm
    state_shapes: Any  # of the state of the algorithm
    hparams: hparams_lib.HParams
    frequency: frequency.FrequencyOptions
    mesh: Mesh | None  # of several devices, else None
    costs: costs.CostModel
    held: np.ndarray  # [2, N] number of images of every client: unlabeled, labeled

    def task_of(self, output: str) -> tasks_lib.Task:
        """The task of an output of `Algorithm.predict`."""
        return self.algorithm.tasks.get(output) or tasks_lib.classification(self.dataset.num_classes)

    @property
    def test_truth(self) -> dict[str, np.ndarray]:
        """What outputs for `dataset.test_images` are compared with, by task."""
        truth = {name: target.test for name, target in self.dataset.targets.items()}
        truth['classification'] = self.dataset.test_labels
        tasks = list(self.algorithm.tasks.values()) or [self.task_of(self.algorithm.headline)]
        return {task.name: truth[task.name] for task in tasks}

    @property
    def headline(self) -> tasks_lib.Headline:
        """The number by which the method is judged."""
        score = self.task_of(self.algorithm.headline).score
        return tasks_lib.Headline(self.algorithm.headline, score, self.dataset.eval_split)

    @property
    def score_keys(self) -> list[str]:
        """The keys of the scores of dense tasks in metrics.jsonl."""
        return [tasks_lib.score_key(name, task.score.name) for name, task in self.algorithm.tasks.items()]


def build(config: ConfigDict) -> Experiment:
    """Loads and splits the data, and builds model and algorithm, of a configuration that is checked and resolved.
    Writes nothing except the cache of decoded data.

    Raises:
      UserError: the data are missing or do not fit the configuration, the model does not fit the images, or the
        devices are missing or cannot share the clients.
    """
    (experiment,) = build_trials([config])
    return experiment


def build_trials(configs: Sequence[ConfigDict]) -> list[Experiment]:
    """As `build`, R trials whose configurations differ only in `seed`; they share one copy of the images, and model and
    algorithm but for the first state with `model.weights`."""
    config = configs[0]
    mesh = core.make_mesh(count_devices(config))
    dataset = data.load(config.data)
    data.check_tasks(dataset, config.data.tasks)
    partitions = [split(dataset, trial_config) for trial_config in configs]
    starts = configs if _is_run(config.model.weights) else configs[:1]  # with encoders of a run, each seed has its own
    shared = [build_shared(start, dataset, mesh) for start in starts] * (len(configs) // len(starts))
    federations = build_federations(config, dataset, partitions)
    if mesh and isinstance(federations[0], Federation):
        federations = core.replicate(mesh, federations)
    return [
        assemble(trial, dataset, partition, own, core.replicate(mesh, rng.root(trial.seed)), federation)
        for trial, partition, own, federation in zip(configs, partitions, shared, federations, strict=True)
    ]


class Shared(NamedTuple):
    """What trials share beside the images."""

    model: Any  # models.SplitModel; with dense tasks a tuple of TaskModel
    method: algorithms.Method
    algorithm: Algorithm
    state_shapes: Any
    hparams: hparams_lib.HParams
    mesh: Mesh | None  # of several devices, else None


def build_shared(config: ConfigDict, dataset: data.Dataset, mesh: Mesh | None) -> Shared:
    """Model and method of a configuration (resolved) for a data set, of which only shapes and normalization count.

    Raises:
      UserError: the model does not fit the images, the devices of `mesh` cannot share the clients, or the method
        builds no Algorithm.
    """
    method, hparams = algorithms.get(config.algorithm), config_lib.hparams(config)
    model = build_model(config, dataset.outline, axes=(core.AXIS,) if mesh else ())
    _check_padding(config, method, model, mesh)
    chunk, how = config.federation.client_chunk, config.federation.client_map
    axis = core.client_axis(chunk, how, mesh, config.federation.num_active // max(1, len(config.data.tasks)))
    built = algorithms.build(config.algorithm, model, views(config.augment, dataset), hparams, axis)
    algorithm = checks.check_algorithm(method.name, built)
    algorithm = algorithm._replace(round=core.shard_round(mesh, algorithm.round))
    return Shared(model, method, algorithm, jax.eval_shape(algorithm.init, rng.root(0)), hparams, mesh)


def build_model(config: ConfigDict, outline: data.Outline, axes: tuple[str, ...] = ()) -> Any:
    """The model of a configuration (resolved): a `models.SplitModel`, or for dense tasks a tuple of `TaskModel`.
    BatchNorm statistics are averaged over the device `axes`.

    Raises:
      UserError: the model does not fit the images, or a file of weights does not fit the model.
    """
    net, dtype = config.model, 'bfloat16' if config.precision == 'bfloat16' else 'float32'
    options = {name: net[name] for name in ('convolution', 'batch_norm_variance', 'recompute')} | {'dtype': dtype}
    if not config.data.tasks:
        cut = net.split_index, net.projection, net.projection_dim
        return models.build(net.name, outline.classes, outline.image, *cut, axes=axes, **options)
    of_tasks = []
    for name in config.data.tasks:
        outputs = outline.outputs[name]
        model = models.build_dense(net.name, outputs, outline.image, output_stride=net.output_stride, **options)
        of_tasks.append(TaskModel(tasks_lib.make(name, outputs), model))
    if net.weights:  # of the encoder; all tasks begin with that of the first model (`init_models`)
        init = of_tasks[0].model.init
        arrays = _encoder_of_run(net.weights, config.seed) if _is_run(net.weights) else None
        encoder = models.load_encoder(net.weights, jax.eval_shape(init, rng.root(0)).bottom, arrays)
        model = of_tasks[0].model._replace(init=lambda key: init(key)._replace(bottom=encoder))
        of_tasks[0] = of_tasks[0]._replace(model=model)
    return tuple(of_tasks)


def _is_run(weights: str) -> bool:
    """Whether `model.weights` is a folder."""
    return os.path.isdir(os.path.expanduser(weights))


def _encoder_of_run(weights: str, seed: int) -> dict[str, np.ndarray]:
    """The encoder with which the finished run in a folder ended, that of `seed` if it has several. UserError: there is
    no such run."""
    folder = Path(weights).expanduser()
    home = folder / f'seed_{seed}' if any(folder.glob('seed_*')) else folder
    try:
        tasks = file_io.read_object(home / 'config.json')['data']['tasks']
        rounds = file_io.read_object(home / 'summary.json')['rounds']  # written at the end
        return checkpoint.read_encoder(home / 'checkpoints', rounds, tasks)
    except (UserError, KeyError) as error:
        use = 'give a finished run of m_fed or mfed_fl that has this seed, or one of a single seed'
        raise UserError(
            f"config.model.weights='{weights}': no encoder of seed {seed} there ({error}); {use}"
        ) from error


def build_federations(
    config: ConfigDict, dataset: data.Dataset, partitions: Sequence[data.Partition]
) -> Sequence[Federation | data.HostFederation]:
    """The data of trials that share a configuration (resolved) but for their seeds, as `data.build_federations`."""
    clients = algorithms.get(config.algorithm).clients
    residency = config.data.residency if clients else 'host'  # unread images stay on the host
    if config.pseudo_labels == 'true' and (unknown := data.count_unknown(dataset, partitions)):
        raise UserError(
            f"config.pseudo_labels='true' needs the labels of all images at the clients, but those of {unknown:,} "
            f"images of {dataset.name} are unknown; use 'method', or another data set"
        )
    all_labels, tasks = config.data.client_labels == -1, tuple(config.data.tasks)
    return data.build_federations(dataset, partitions, residency, all_labels, tasks)


def assemble(
    config: ConfigDict,
    dataset: data.Dataset,
    partition: data.Partition,
    shared: Shared,
    key: Array,
    federation: Federation | data.HostFederation,
) -> Experiment:
    """The experiment of one trial: its configuration (resolved), split, root key and data, and what trials share."""
    all_labels, unlabeled = config.data.client_labels == -1, [len(rows) for rows in partition.client_index]
    labeled = unlabeled if all_labels else [len(rows) for rows in partition.client_labeled_index]
    used = (partition.server_index, *partition.client_labeled_index, *partition.client_index)
    images = len(np.unique(np.concatenate(used)))
    controller = frequency.FrequencyOptions(
        rule=config_lib.k_s_rule(keys.flat(config), shared.method),
        k_s=config.k_s,
        k_u=config.k_u,
        labeled_share=len(partition.server_index) / images,
        pre_rounds=config.pre_rounds,
        **config.frequency.to_dict(),
    )
    frequency.check(controller)
    price = costs.build(
        config,
        shared.method,
        dataset.num_classes,
        dataset.train_images.shape[1:],
        shared.hparams,
        failures.can_happen(config.failures),
        [dataset.targets[name].outputs for name in config.data.tasks],
    )
    return Experiment(
        config=config,
        key=key,
        dataset=data.evaluated(dataset, partition.validation_index, config.data.eval_split, config.data.tasks),
        partition=partition,
        federation=federation,
        frequency=controller,
        costs=price,
        held=np.array([unlabeled, labeled], np.int32),
        **shared._asdict(),
    )


def identity(config: ConfigDict, partition: data.Partition) -> checkpoint.Identity:
    """The identity that checkpoints of a trial of `config` (resolved) carry."""
    return checkpoint.Identity(config.seed, config_lib.identity_hash(config), partition.content_hash)


def _check_padding(config: ConfigDict, method: algorithms.Method, model: Any, mesh: Mesh | None) -> None:
    """Clients of weight 0 do not contribute to any sum, but would to the batch statistics of the server's BatchNorm."""
    active, devices = config.federation.num_active, mesh.size if mesh else 1
    may_fail = failures.can_happen(config.failures)
    if method.whole_model or method.own_top or not (active % devices or may_fail):  # the former share no statistics
        return
    if 'batch_stats' not in jax.eval_shape(model.init, rng.root(0)).top:
        return
    if may_fail:
        raise UserError(
            f"config.failures: the server's part of the model (model.split_index={config.model.split_index}) has "
            'BatchNorm, which would count failed clients; choose a split_index after the last BatchNorm'
        )
    raise UserError(
        f'config.parallel.devices={devices} does not divide federation.num_active={active}, as BatchNorm at the '
        f'server needs (model.split_index={config.model.split_index}); use a divisor, or another num_active'
    )


def split(dataset: data.Dataset, config: ConfigDict) -> data.Partition:
    """Who holds which images: drawn, or read from `data.partition_file`."""
    if config.data.partition_file:
        return data.load_for(config.data.partition_file, dataset, config)
    return data.make_partition(dataset, config)


def views(options: ConfigDict, dataset: data.Dataset) -> Views:
    """The augmented views of `config.augment`, and the normalization of a data set."""
    settings = augment.AugmentOptions(**options)
    mean, std = (np.array(values, np.float32) for values in (dataset.mean, dataset.std))
    middle = tuple(int(255 * value + 0.5) for value in dataset.mean)
    weak, strong = partial(augment.weak, options=settings), partial(augment.strong, options=settings, middle=middle)
    return Views(
        weak=weak,
        strong=strong,
        supervised=strong if options.supervised == 'strong' else weak,
        together=partial(augment.together, options=settings),
        normalize=lambda images: (images.astype(jnp.float32) / 255.0 - mean) / std,
    )


def compile_with(config: ConfigDict) -> Callable:
    """`machine.jit` with the precision and determinism of a configuration."""
    return partial(machine.jit, precision=config.precision, deterministic=config.deterministic)
