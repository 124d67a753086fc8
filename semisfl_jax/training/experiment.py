"""Builds the objects of a run from its configuration: the one place where data, model and algorithm meet."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from semisfl_jax import (
    algorithms,
    augment,
    costs,
    data,
    failures,
    frequency,
    models,
    parallel,
    phases,
    rng,
)
from semisfl_jax import config as config_lib
from semisfl_jax import hparams as hparams_lib
from semisfl_jax import tasks as tasks_lib
from semisfl_jax.config import keys
from semisfl_jax.errors import UserError
from semisfl_jax.training import checkpoint, memory, split_words
from semisfl_jax.training import footprint as footprint_lib
from semisfl_jax.types import Algorithm, Array, Federation, Views
from semisfl_jax.wording import size


class Experiment(NamedTuple):
    """Everything about a run except its state."""

    config: ConfigDict  # resolved
    key: Array  # root key
    dataset: data.Dataset  # whose test images are validation images if these are what it evaluates on
    partition: data.Partition
    federation: Federation | data.HostFederation
    model: Any  # models.SplitModel; with dense tasks a tuple of phases.TaskModel
    method: algorithms.Method
    algorithm: Algorithm
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
        tasks = list(self.algorithm.tasks.values()) or [self.task_of(self.algorithm.headline)]
        return {task.name: self.dataset.test_truth[task.name] for task in tasks}

    @property
    def evaluated_on(self) -> str:
        """The same for two trials only if they are evaluated on the same images."""
        return 'test' if self.dataset.eval_split == 'test' else self.partition.content_hash

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
    """Loads and splits the data, and builds model and algorithm. Writes nothing except the cache of decoded data.

    Args:
      config: of one trial, checked and resolved.

    Raises:
      UserError: the data are missing or do not fit the configuration, the model does not fit the images, or the
        devices are missing or cannot share the clients.
    """
    (experiment,) = build_trials([config])
    return experiment


def build_trials(configs: Sequence[ConfigDict]) -> list[Experiment]:
    """Builds trials that differ only in their seeds; they share model, algorithm and one copy of the images.

    Args:
      configs: R configurations, checked and resolved, equal except for `seed`.

    Raises:
      UserError: as `build`.
    """
    config = configs[0]
    mesh = parallel.make_mesh(config.parallel.devices)
    memory.check(config, partial(footprint, trials=len(configs)))
    dataset = data.load(config.data)
    data.check_tasks(dataset, config.data.tasks)
    partitions = [split(dataset, trial_config) for trial_config in configs]
    most_held = max(len(rows) for partition in partitions for rows in partition.client_index)
    outline = dataset.outline._replace(most_held=most_held)
    memory.check(config, partial(footprint, trials=len(configs), loaded=outline))
    parts = build_parts(config, dataset, mesh)
    federations = build_federations(config, dataset, partitions)
    if mesh and isinstance(federations[0], Federation):
        federations = parallel.replicate(mesh, federations)
    return [
        assemble(trial, dataset, partition, parts, parallel.replicate(mesh, rng.root(trial.seed)), federation)
        for trial, partition, federation in zip(configs, partitions, federations, strict=True)
    ]


class Parts(NamedTuple):
    """What trials share beside the images."""

    model: Any  # models.SplitModel; with dense tasks a tuple of phases.TaskModel
    method: algorithms.Method
    algorithm: Algorithm
    hparams: hparams_lib.HParams
    mesh: Mesh | None  # of several devices, else None


def build_parts(config: ConfigDict, dataset: data.Dataset, mesh: Mesh | None) -> Parts:
    """Model and method of a configuration (resolved) for a data set, of which only shapes and normalization count.

    Raises:
      UserError: the model does not fit the images, or the devices of `mesh` cannot share the clients.
    """
    method, hparams = algorithms.get(config.algorithm), config_lib.hparams(config)
    model = _model(config, dataset.outline, axes=(parallel.AXIS,) if mesh else ())
    _check_padding(config, method, model, mesh)
    chunk, how = config.federation.client_chunk, config.federation.client_map
    axis = parallel.client_axis(chunk, how, mesh, config.federation.num_active // max(1, len(config.data.tasks)))
    algorithm = algorithms.build(config.algorithm, model, views(config.augment, dataset), hparams, axis)
    algorithm = algorithm._replace(round=parallel.shard_round(mesh, algorithm.round))
    return Parts(model, method, algorithm, hparams, mesh)


def build_federations(
    config: ConfigDict, dataset: data.Dataset, partitions: Sequence[data.Partition]
) -> Sequence[Federation | data.HostFederation]:
    """The data of trials that share a configuration (resolved) but for their seeds, as `data.build_federations`."""
    clients = algorithms.get(config.algorithm).clients
    residency = config.data.residency if clients else 'host'  # unread images stay on the host
    if config.pseudo_labels == 'true':
        _check_truth(dataset, partitions)
    all_labels, tasks = config.data.client_labels == -1, tuple(config.data.tasks)
    return data.build_federations(dataset, partitions, residency, all_labels, tasks)


def _check_truth(dataset: data.Dataset, partitions: Sequence[data.Partition]) -> None:
    """Raises UserError if clients hold images whose class is unknown, and `pseudo_labels` 'true' asks for it."""
    held = np.unique(np.concatenate([rows for partition in partitions for rows in partition.client_index]))
    if unknown := int(np.sum(dataset.train_labels[held] < 0)):
        raise UserError(
            f"config.pseudo_labels='true' needs the labels of all images at the clients, but those of {unknown:,} "
            f"images of {dataset.name} are unknown; use 'method', or another data set"
        )


def assemble(
    config: ConfigDict,
    dataset: data.Dataset,
    partition: data.Partition,
    parts: Parts,
    key: Array,
    federation: Federation | data.HostFederation,
) -> Experiment:
    """The experiment of one trial: its configuration (resolved), split, root key and data, and what trials share."""
    method, hparams = parts.method, parts.hparams
    may_fail, outputs = failures.can_happen(config.failures), [dataset.targets[n].outputs for n in config.data.tasks]
    shape, held_out = dataset.train_images.shape[1:], partition.validation_index
    dataset = data.evaluated(dataset, held_out, config.data.eval_split, config.data.tasks)
    return Experiment(
        config=config,
        key=key,
        dataset=dataset,
        partition=partition,
        federation=federation,
        frequency=frequency.FrequencyOptions(
            rule=config.k_s_rule,
            alpha=config.frequency.alpha,
            beta=config.frequency.beta,
            period=config.frequency.period,
            horizon=config.frequency.horizon,
            check_every=config.frequency.check_every,
            k_u=config.k_u,
            labeled_share=len(partition.server_index) / (len(dataset.train_images) - len(held_out)),
            pre_rounds=config.pre_rounds,
        ),
        costs=costs.build(config, method, dataset.num_classes, shape, hparams, may_fail, outputs),
        held=_held(partition, config.data.client_labels == -1),
        **parts._asdict(),
    )


def identity(config: ConfigDict, partition: data.Partition) -> checkpoint.Identity:
    """The identity that checkpoints of a trial of `config` (resolved) carry."""
    return checkpoint.Identity(config.seed, config_lib.identity_hash(config), partition.content_hash)


def footprint(config: ConfigDict, trials: int = 1, loaded: data.Outline | None = None) -> list[footprint_lib.Share]:
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
        outline = outline._replace(test=config.data.num_validation)
    if outline is None or set(config.data.tasks) - outline.outputs.keys():  # loaded data are needed to know
        return []
    method, hparams = algorithms.get(config.algorithm), config_lib.hparams(config)
    unseen = Views(*[lambda *arguments: arguments[-1]] * len(Views._fields))  # the state does not depend on them
    algorithm = algorithms.build(config.algorithm, _model(config, outline), unseen, hparams)
    state = jax.eval_shape(algorithm.init, rng.root(0))
    uploads_whole_model = method.separate_clients and not method.sequential(keys.flat(config))
    method_shapes = footprint_lib.Method(
        state=state,
        uses_clients=method.clients,
        reads_sets=method.reads == 'sets',
        server_trains=hparams.server_trains,
        uploads=state.student if uploads_whole_model else state.student.bottom,
        tasks=max(1, len(config.data.tasks)),
        rows_at_once=method.rows_at_once(hparams.options),
    )
    return footprint_lib.shares(config, outline, hparams, method_shapes, trials)


def _model(config: ConfigDict, outline: data.Outline, axes: tuple[str, ...] = ()) -> Any:
    """The model of a configuration; for dense tasks a tuple of `phases.TaskModel`."""
    if config.data.tasks:
        return tuple(_task_model(config, outline, name) for name in config.data.tasks)
    return models.build(
        config.model.name,
        outline.classes,
        outline.image,
        config.model.split_index,
        config.model.projection,
        config.model.projection_dim,
        config.model.convolution,
        'bfloat16' if config.precision == 'bfloat16' else 'float32',
        axes=axes,
        batch_norm_variance=config.model.batch_norm_variance,
        recompute=config.model.recompute,
    )


def _task_model(config: ConfigDict, outline: data.Outline, name: str) -> phases.TaskModel:
    """The model of a dense task, its encoder from a file if there is one."""
    net, outputs = config.model, outline.outputs[name]
    model = models.build_dense(
        net.name,
        outputs,
        outline.image,
        net.convolution,
        'bfloat16' if config.precision == 'bfloat16' else 'float32',
        net.batch_norm_variance,
        net.output_stride,
        net.recompute,
    )
    if net.weights:
        encoder = models.load_encoder(net.weights, jax.eval_shape(model.init, rng.root(0)).bottom)
        init = model.init
        model = model._replace(init=lambda key: init(key)._replace(bottom=encoder))
    return phases.TaskModel(tasks_lib.make(name, outputs), model)


def _held(partition: data.Partition, all_labels: bool) -> np.ndarray:
    unlabeled = [len(rows) for rows in partition.client_index]
    labeled = unlabeled if all_labels else [len(rows) for rows in partition.client_labeled_index]
    return np.array([unlabeled, labeled], np.int32)


def _check_padding(config: ConfigDict, method: algorithms.Method, model: Any, mesh: Mesh | None) -> None:
    """Clients of weight 0 do not contribute to any sum, but would to the batch statistics of the server's BatchNorm."""
    active = config.federation.num_active
    if method.separate_clients:  # no statistics are shared between clients
        return
    may_fail = failures.can_happen(config.failures)
    divides = mesh is None or parallel.padded_size(mesh, active) == active
    if divides and not may_fail:
        return
    if 'batch_stats' not in jax.eval_shape(model.init, rng.root(0)).top:
        return
    if may_fail:
        raise UserError(
            f"config.failures: the server's part of the model (model.split_index={config.model.split_index}) has "
            'BatchNorm, whose statistics would include the clients that failed; choose a split_index after the last '
            'BatchNorm'
        )
    assert mesh is not None  # else there is nothing to divide
    processes = jax.process_count()
    good = [n for n in range(processes, mesh.size, processes) if active % n == 0]
    advice = f'{good[-1]} devices or ' if good else ''
    raise UserError(
        f'config.parallel.devices={mesh.size} does not divide federation.num_active={active}, as it must if the '
        f"server's part of the model has BatchNorm (model.split_index={config.model.split_index}); "
        f'use {advice}another num_active'
    )


def split(dataset: data.Dataset, config: ConfigDict) -> data.Partition:
    """Who holds which images: drawn, or read from `data.partition_file`."""
    if config.data.partition_file:
        return data.load_for(config.data.partition_file, dataset, config)
    return data.make_partition(dataset, config)


def views(options: ConfigDict, dataset: data.Dataset) -> Views:
    """The augmented views of `config.augment`, and the normalization of a data set."""
    settings = augment.AugmentOptions(**{name: options[name] for name in augment.AugmentOptions._fields})
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


def _count(images: int) -> str:
    return f'{images:,} labeled images' if images else 'no images'


def _evaluated(experiment: Experiment) -> str:
    """'10,000 test', and whatever is held out."""
    held_out, split = len(experiment.partition.validation_index), experiment.dataset.eval_split
    if split == 'validation':
        return f'(held out of them) {held_out:,} VALIDATION'
    unused = f'(except {held_out:,} that are held out, not used) and ' if held_out else ''
    return f'{unused}{len(experiment.dataset.test_images):,} test'


def _origin(trials: Sequence[Experiment]) -> str:
    """Describes where the split of these trials comes from."""
    config = trials[0].config
    if config.data.partition_file:
        return f'the split of {config.data.partition_file}'
    if config.data.partition_seed != -1:
        return f'one split for all seeds (partition_seed={config.data.partition_seed})'
    return 'each seed draws its own split' if len(trials) > 1 else f'drawn from seed {config.seed}'


def _task_words(config: ConfigDict) -> str:
    """'2 tasks: semseg, depth', '' for classification."""
    names = config.data.tasks
    return f'{len(names)} task{"s" if len(names) > 1 else ""}: {", ".join(names)}' if names else ''


def _model_words(student: Any, config: ConfigDict) -> str:
    """The numbers of parameters of a model and of its pieces; with dense tasks those of a client."""

    def count(tree: Any) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(tree))

    if not config.data.tasks:
        pieces = {name: count(piece['params']) for name, piece in student._asdict().items()}
        return (
            f'{sum(pieces.values()):,} parameters: bottom {pieces["bottom"]:,}, top {pieces["top"]:,}, '
            f'projection head {pieces["proj"]:,}'
        )
    encoder = count(student.bottom['params'][config.data.tasks[0]])
    decoders = [count(student.top['params'][name]) for name in config.data.tasks]
    least, most = min(decoders), max(decoders)
    decoder = f'{least:,} to {most:,}' if least < most else f'{least:,}'
    return f'a client has an encoder of {encoder:,} and a decoder of {decoder} parameters'


_PSEUDO_LABELS = {
    'true': 'ORACLE: the true labels take the place of pseudo-labels; no method can have them',
    'none': 'NO PSEUDO-LABELS: none counts, all else is as in the method',
}


def describe(trials: Sequence[Experiment]) -> list[str]:
    """A description of a run of these trials, usually one, in a few lines."""
    experiment = trials[0]
    config, dataset, partition = experiment.config, experiment.dataset, experiment.partition
    height, width, channels = dataset.train_images.shape[1:]
    seeds = f'seed{"s" if len(trials) > 1 else ""} {", ".join(str(trial.config.seed) for trial in trials)}'
    clients = split_words.clients([trial.partition for trial in trials], config.data.client_labels == -1)
    state = jax.eval_shape(experiment.algorithm.init, experiment.key)
    device = jax.devices()[0]
    devices = f', {experiment.mesh.size} of them' if experiment.mesh else ''
    devices += f' in {jax.process_count()} processes' if jax.process_count() > 1 else ''
    lines = [
        f'algorithm  {config.algorithm}, {seeds}, {config.rounds} rounds',
        f'data       {dataset.name}: {len(dataset.train_images):,} training and {_evaluated(experiment)} '
        f'images of {height}x{width}x{channels}, {_task_words(config) or f"{dataset.num_classes} classes"}',
        f'split      {_count(len(partition.server_index))} at the server; {partition.num_clients} clients, '
        f'{clients}, {config.federation.num_active} active in a round, {_origin(trials)}',
        f'model      {config.model.name}, {_model_words(state.student, config)}',
        f'device     {device.platform} ({device.device_kind}){devices}',
    ]
    if kept := footprint_lib.size_of(getattr(state, 'clients', ())):
        each, total = size(kept / partition.num_clients), size(kept * len(trials))
        lines.append(f'memory     each client keeps {each} between its rounds, {total} in all')
    if experiment.costs.price is None:
        lines.append(f'costs      none: {config.algorithm} has no price (docs/your-own.md)')
    if said := _PSEUDO_LABELS.get(config.pseudo_labels):
        lines.insert(0, f'*** {said} (pseudo_labels={config.pseudo_labels}) ***')
    if dataset.fake:
        lines.insert(0, '*** FAKE DATA: the images are made up, and the accuracies mean nothing ***')
    return lines
