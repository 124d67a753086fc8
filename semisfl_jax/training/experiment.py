"""Builds the objects of a run from its configuration: the one place where data, model and algorithm meet."""

import hashlib
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
from semisfl_jax.base import file_io, machine
from semisfl_jax.base.errors import UserError, describe
from semisfl_jax.config import failures, ignored_keys, keys
from semisfl_jax.config.resolve import count_devices
from semisfl_jax.core import frequency, rng
from semisfl_jax.core import hparams as hparams_lib
from semisfl_jax.core.types import Algorithm, Array, Federation, Views
from semisfl_jax.training import checkpoint, checks


class Experiment(NamedTuple):
    """Everything about a run except its state."""

    config: ConfigDict  # resolved
    key: Array  # root key
    dataset: data.Dataset  # its test images are the validation images if the run is evaluated on those
    partition: data.Partition
    federation: Federation | data.HostFederation
    model: Any  # models.SplitModel; with dense tasks a tuple of TaskModel
    method: algorithms.Method
    algorithm: Algorithm
    build: Callable[[hparams_lib.HParams], Algorithm]  # `algorithm` with other hyper-parameters
    state_shapes: Any  # of the state of the algorithm
    hparams: hparams_lib.HParams
    frequency: frequency.FrequencyOptions
    mesh: Mesh | None  # of several devices, else None
    costs: costs.CostModel
    held: np.ndarray  # [2, N] number of images of every client: unlabeled, labeled

    def task_of(self, output: str) -> tasks_lib.Task:
        """Returns the task of an output of `Algorithm.predict`."""
        return self.algorithm.tasks.get(output) or tasks_lib.classification(self.dataset.num_classes)

    @property
    def test_truth(self) -> dict[str, np.ndarray]:
        """Truths of `dataset.test_images`, by task, to compare outputs with."""
        truth = {name: target.test for name, target in self.dataset.targets.items()}
        truth['classification'] = self.dataset.test_labels
        tasks = list(self.algorithm.tasks.values()) or [self.task_of(self.algorithm.headline)]
        return {task.name: truth[task.name] for task in tasks if not task.scorer.on_host}

    @property
    def host_truth(self) -> dict[str, tuple[Any, ...]]:
        """What `Scorer.finish` takes beside outputs, by task that the host scores."""
        data = self.dataset
        others = data.test_sizes, data.test_images.shape[1]
        tasks = self.algorithm.tasks.values()
        return {task.name: (data.targets[task.name].test, *others) for task in tasks if task.scorer.on_host}

    @property
    def devices(self) -> int:
        """Number of devices that divide the clients."""
        return self.mesh.size if self.mesh else 1

    @property
    def headline(self) -> tasks_lib.Headline:
        """The number by which the method is judged."""
        score = self.task_of(self.algorithm.headline).score
        return tasks_lib.Headline(self.algorithm.headline, score, self.dataset.eval_split)


def with_data(config: ConfigDict, given: data.Dataset | None) -> ConfigDict:
    """Returns a copy of a configuration with the keys that given data decide; without such data, the same.

    Raises:
      UserError: `given` is no Dataset, or one of these keys was changed to something else.
    """
    if given is None or not isinstance(config, ConfigDict):
        return config
    if not isinstance(given, data.Dataset):
        raise UserError(f'dataset is {describe(given)}; use sfl.data.from_arrays(…), or another sfl.data.Dataset')
    decided = {'data.name': given.name, 'data.fake': given.fake}
    if given.client_ids is not None:
        decided['federation.partition'] = data.NATURAL
        decided['federation.num_clients'] = int(given.client_ids.max()) + 1
    flat = keys.flat(config)
    for key in decided.keys() & {*ignored_keys.changed(config)}:
        if flat[key] != decided[key]:
            raise UserError(
                f'config.{key}={flat[key]!r} contradicts the dataset, which has {decided[key]!r}: leave it out'
            )
    changed = ConfigDict(config.to_dict())
    changed.update_from_flattened_dict(decided)
    return changed


def build(config: ConfigDict, given: data.Dataset | None = None) -> Experiment:
    """Builds the experiment of one trial: loads and splits the data, builds model and algorithm.

    Writes nothing except the cache of decoded data. `config` is checked and resolved; `given` are its data if no file
    has them.

    Raises:
      UserError: the data are missing or do not fit the configuration, the model does not fit the images, or the devices
        are missing or cannot share the clients.
    """
    return build_trials([config], given=given)[0]


def build_trials(
    configs: Sequence[ConfigDict], goes_on: bool = False, given: data.Dataset | None = None
) -> list[Experiment]:
    """Builds R trials, as `build` does one.

    They share one copy of the images, and model and algorithm, except the first state with `model.weights`.

    Args:
      configs: [R], which differ only in `seed`, in their split and in numbers of a round.
      goes_on: whether all trials resume, so that none needs a first state.
      given: the data if no file has them.

    Returns:
      The experiments [R].
    """
    config = configs[0]
    mesh = core.clients.make_mesh(
        count_devices(config) if len(configs) == 1 else 1
    )  # of several trials, `Driver` has it
    dataset = data.load(config.data, given)
    data.check_tasks(dataset, config.data.tasks)
    partitions = [split(dataset, trial_config) for trial_config in configs]
    starts = configs if _is_run(config.model.weights) else configs[:1]  # each seed of a run has its own encoder
    if goes_on:
        starts = [config.copy_and_resolve_references().unlock()]
        starts[0].model.weights = ''
    shared = [build_shared(start, dataset, mesh) for start in starts] * (len(configs) // len(starts))
    federations = build_federations(config, dataset, partitions)
    if mesh and isinstance(federations[0], Federation):
        federations = core.clients.replicate(mesh, federations)
    return [
        assemble(trial, dataset, partition, parts, core.clients.replicate(mesh, rng.root(trial.seed)), federation)
        for trial, partition, parts, federation in zip(configs, partitions, shared, federations, strict=True)
    ]


class Shared(NamedTuple):
    """The parts that trials share besides the images."""

    model: Any  # models.SplitModel; with dense tasks a tuple of TaskModel
    method: algorithms.Method
    algorithm: Algorithm
    build: Callable[[hparams_lib.HParams], Algorithm]  # `algorithm` with other hyper-parameters
    state_shapes: Any
    hparams: hparams_lib.HParams
    mesh: Mesh | None  # of several devices, else None


def build_shared(config: ConfigDict, dataset: data.Dataset, mesh: Mesh | None) -> Shared:
    """Builds model and method for a data set, of which only shapes and normalization count.

    Args:
      config: configuration, resolved.
      dataset: the data set.
      mesh: devices that divide the clients, None for one.

    Raises:
      UserError: model or views do not fit the images, the devices of `mesh` cannot share the clients, or the method
        builds no Algorithm.
    """
    method, hparams = algorithms.get(config.algorithm), config_lib.hparams(config)
    idle = 'augment.operations' in ignored_keys.find(config)  # no strong view
    augment.check_images(dataset.outline.image, 0 if idle else config.augment.operations)
    model = build_model(config, dataset.outline, axes=(core.clients.AXIS,) if mesh else ())
    _check_padding(config, method, model, mesh)
    chunk, how = config.federation.client_chunk, config.federation.client_map
    axis = core.clients.client_axis(chunk, how, mesh, config.federation.num_active // config_lib.num_tasks(config))
    views_ = views(config.augment, dataset)

    def build(hparams: hparams_lib.HParams) -> Algorithm:
        built = algorithms.build(config.algorithm, model, views_, hparams, axis)
        algorithm = checks.check_algorithm(method.name, built)
        return algorithm._replace(round=core.clients.shard_round(mesh, algorithm.round))

    algorithm = build(hparams)
    return Shared(model, method, algorithm, build, jax.eval_shape(algorithm.init, rng.root(0)), hparams, mesh)


def build_model(config: ConfigDict, outline: data.Outline, axes: tuple[str, ...] = ()) -> Any:
    """Builds the model of a configuration.

    Args:
      config: configuration, resolved.
      outline: shapes of the data.
      axes: device axes over which BatchNorm statistics are averaged.

    Returns:
      A `models.SplitModel`, or for dense tasks a tuple of `TaskModel`.

    Raises:
      UserError: the model does not fit the images, or a file of weights does not fit the model.
    """
    net, dtype = config.model, 'bfloat16' if config.precision == 'bfloat16' else 'float32'
    options = {name: net[name] for name in ('convolution', 'batch_norm_variance', 'recompute')} | {'dtype': dtype}
    if not config.data.tasks:
        cut = net.split_index, net.projection, net.projection_dim
        return _started(config, models.build(net.name, outline.classes, outline.image, *cut, axes=axes, **options))
    task_models = []
    for name in config.data.tasks:
        task = outline.task(name)
        options |= {'output_stride': net.output_stride, 'task': name, 'stuff': task.stuff}
        task_models.append(TaskModel(task, models.build_dense(net.name, task.outputs, outline.image, **options)))
    first = task_models[0]  # all tasks begin with its encoder (`init_models`)
    return (first._replace(model=_started(config, first.model)), *task_models[1:])


def _started(config: ConfigDict, model: models.SplitModel) -> models.SplitModel:
    """Returns a model that starts with `model.weights`, if there are any."""
    if not (weights := config.model.weights):
        return model
    return models.start_with(model, weights, _encoder_of_run(weights, config.seed) if _is_run(weights) else None)


def _is_run(weights: str) -> bool:
    """Returns whether `model.weights` is a folder."""
    return os.path.isdir(os.path.expanduser(weights))


def _encoder_of_run(weights: str, seed: int) -> dict[str, np.ndarray]:
    """Reads the encoder of a finished run, that of `seed` if it has several; UserError if there is none."""
    folder = Path(weights).expanduser()
    home = folder / f'seed_{seed}' if any(folder.glob('seed_*')) else folder
    try:
        tasks = file_io.read_object(home / 'config.json')['data']['tasks']
        return checkpoint.read_encoder(_last_checkpoint(home), tasks)
    except (UserError, KeyError, TypeError) as error:
        use = 'give a finished run of m_fed or mfed_fl that has this seed, or one of a single seed'
        raise UserError(
            f"config.model.weights='{weights}': no encoder of seed {seed} there ({error}); {use}"
        ) from error


def _last_checkpoint(home: Path) -> Path:
    """Returns the folder of the last checkpoint of a finished run of one seed."""
    return home / 'checkpoints' / str(file_io.read_object(home / 'summary.json')['rounds'])  # written at the end


def weights_hash(weights: str) -> str:
    """Computes the SHA-256 (hexadecimal) of what `model.weights` names, '' for none.

    It covers a file, or the states in which a run, or each of its seeds, ended.

    Raises:
      UserError: it cannot be read.
    """
    if not weights:
        return ''
    if not _is_run(weights):
        return hashlib.sha256(file_io.read(weights, 'model.weights')).hexdigest()
    folder = Path(weights).expanduser()
    files = (folder / 'summary.json', *sorted(folder.glob('seed_*/summary.json')))
    ended = [file.parent for file in files if file.exists() and (file.parent / 'checkpoints').is_dir()]
    if not ended:
        raise UserError(f"config.model.weights='{weights}' holds no finished run")
    return hashlib.sha256(''.join(checkpoint.digest(_last_checkpoint(home)) for home in ended).encode()).hexdigest()


def build_federations(
    config: ConfigDict, dataset: data.Dataset, partitions: Sequence[data.Partition]
) -> Sequence[Federation | data.HostFederation]:
    """Builds the data of R trials that differ only in their seeds, as `data.build_federations`.

    Args:
      config: configuration of any of them, resolved.
      dataset: the data set.
      partitions: [R] splits.

    Returns:
      [R] federations.

    Raises:
      UserError: `pseudo_labels` is 'true', but the labels of some images are unknown.
    """
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
    federation: Any,  # Federation | data.HostFederation; None if the experiment only predicts
) -> Experiment:
    """Assembles the experiment of one trial: its configuration (resolved), split, root key, data, and shared parts."""
    shared = shared._replace(hparams=config_lib.hparams(config))  # of a grid, each trial has its own
    all_labels, unlabeled = config.data.client_labels == -1, [len(rows) for rows in partition.client_index]
    labeled = unlabeled if all_labels else [len(rows) for rows in partition.client_labeled_index]
    used = (partition.server_index, *partition.client_labeled_index, *partition.client_index)
    labeled_share = len(partition.server_index) / len(np.unique(np.concatenate(used)))
    settings = {name: config[name] for name in ('k_s', 'k_u', 'pre_rounds')} | config.frequency.to_dict()
    rule = config_lib.k_s_rule(keys.flat(config), shared.method)
    controller = frequency.FrequencyOptions(rule=rule, labeled_share=labeled_share, **settings)
    frequency.check(controller)
    tasks = [dataset.outline.task(name) for name in config.data.tasks]
    shape, may_fail = dataset.train_images.shape[1:], failures.can_happen(config.failures)
    price = costs.build(config, shared.method, dataset.num_classes, shape, shared.hparams, may_fail, tasks)
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
    """Returns the identity that the checkpoints of a trial of `config` (resolved) carry."""
    config_hash = config_lib.identity_hash(config, config_lib.MOVABLE)
    return checkpoint.Identity(config.seed, config_hash, partition.content_hash)


def began(trial: Experiment) -> dict[str, Any]:
    """Lists what a trial begins with besides its configuration, in JSON types.

    These are checksums, settings of JAX, and all that its models need to know about the data to predict.
    """
    dataset = trial.dataset
    images = {'name': dataset.name, 'train': len(dataset.train_images), 'test': len(dataset.test_images)}
    return {
        'data': trial.partition.checksum,
        'partition': trial.partition.content_hash,
        'model.weights': weights_hash(trial.config.model.weights),
        **machine.settings(),
        'devices': trial.devices,
        'images': {**images, 'outline': dataset.outline._asdict(), 'mean': dataset.mean, 'std': dataset.std},
    }


def _check_padding(config: ConfigDict, method: algorithms.Method, model: Any, mesh: Mesh | None) -> None:
    """Refuses BatchNorm at the server if clients of weight 0, absent from other sums, would enter its statistics."""
    active, devices = config.federation.num_active, mesh.size if mesh else 1
    may_fail = failures.can_happen(config.failures)
    if method.whole_model or method.own_top or not (active % devices or may_fail):  # the first two share no statistics
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
    """Draws which client holds which images, or reads it from `data.partition_file`."""
    if config.data.partition_file:
        return data.load_for(config.data.partition_file, dataset, config)
    return data.make_partition(dataset, config)


def views(options: ConfigDict, dataset: data.Dataset) -> Views:
    """Builds the augmented views of `config.augment`, and the normalization of a data set."""
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
    """Returns `machine.jit` with the precision and determinism of a configuration."""
    return partial(machine.jit, precision=config.precision, deterministic=config.deterministic)
