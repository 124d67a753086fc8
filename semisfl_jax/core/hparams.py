"""The static hyper-parameters of a method, read from a configuration once."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from semisfl_jax.core.sampling import BatchPlan
from semisfl_jax.core.types import Array


@dataclasses.dataclass(frozen=True)
class Local:
    """`config.local`: local training of clients that hold a whole model or, in SplitFed, their own copy of the top."""

    objective: str = 'fixmatch'
    epochs: int = 0
    steps: str = 'unlabeled'  # resolved: one of `sampling.STEPS`
    weighting: str = 'uniform'  # resolved: 'uniform' | 'samples'
    optimizer_state: str = 'fresh'
    prox: float = 0.01
    teacher_decay: float = 0.99
    input_noise: float = 0.0
    ramp_rounds: int = 0


@dataclasses.dataclass(frozen=True)
class Uda:
    """`config.uda`."""

    temperature: float = 1.0
    tsa: str = 'off'


LR_SCHEDULES = ('cosine', 'poly')
POLY_POWER = 0.9
GROUPS = {'local': Local, 'uda': Uda}  # option groups shared by several methods


@dataclasses.dataclass(frozen=True)
class HParams:
    """Every number and option that shapes a jitted round. Names and meanings are those of configs/default.py."""

    k_s: int = 100  # initial value; each round receives its own k_s as an argument
    k_u: int = 50
    batch_size: int = 64
    server_batch_size: int = 64
    labeled_rows: int = 0  # labeled images at the start of a client batch (Fig. 10); if supervised, all of it
    server_trains: bool = True  # whether K_s is above 0
    num_clients: int = 30
    pre_rounds: int = 0
    sampling: str = 'epochs'
    optimizer: str = 'sgd'
    lr: float = 0.02
    lr_min: float = 0.005
    lr_rounds: int = 1000
    lr_schedule: str = 'cosine'
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    clip_norm: float = 0.0  # norm bound of every gradient, 0: off; not a configuration key, set by methods that clip
    short_batches: bool = False  # the server's last batch of a pass may be short; not a configuration key either
    threshold: float = 0.95
    pseudo_labels: str = 'method'
    temperature: float = 0.2
    consistency_weight: float = 1.0
    clustering_weight: float = 1.0
    contrastive_weight: float = 1.0
    supervised_references: str = 'teacher_keys'
    queue: str = 'two_level'
    queue_size: int = 1024
    queue_stride: int = 10
    queue_empty_slots: str = 'auto'
    ema_decay: float = 0.99
    ema_warmup: bool = True
    client_teacher_ema: bool = False
    client_teacher_bn: str = 'eval'
    server_teacher_bn: str = 'eval'
    local: Local = Local()
    uda: Uda = Uda()
    options: Any = None  # the method's own, an instance of `Method.options`

    @property
    def batches(self) -> BatchPlan:
        """How many batches a client reads in a round, and of which images."""
        return BatchPlan(self.k_u, self.batch_size, self.labeled_rows, self.local.epochs, self.local.steps)

    @property
    def server_list_steps(self) -> int:
        """Number of steps for which the server's image list is repeated (`sampling.server_rows`); 0: not repeated."""
        return self.k_s if self.sampling == 'replicated' else 0


# Fields that no user sets: read from other keys, or changed by methods.
DERIVED = ('labeled_rows', 'server_trains', 'num_clients', 'clip_norm', 'short_batches', 'options')


def shared_defaults() -> dict[str, Any]:
    """The flat keys that `from_config` reads as they are, which methods share, and the defaults of HParams: those
    of configs/default.py, but in `local` what 'auto' stands for where a method does not say otherwise."""
    defaults: dict[str, Any] = {}
    for name, value in dataclasses.asdict(HParams()).items():
        if name in GROUPS:
            defaults |= {f'{name}.{key}': inner for key, inner in value.items()}
        elif name not in DERIVED:
            defaults[name] = value
    return defaults


def from_config(config: ConfigDict, options: Any = None, labels_alone: bool = False) -> HParams:
    """Reads HParams from a resolved configuration, with the `options` of its method, in which clients may train on
    labeled images alone."""
    groups = {
        name: group(**{field.name: config[name][field.name] for field in dataclasses.fields(group)})
        for name, group in GROUPS.items()
    }
    names = {field.name for field in dataclasses.fields(HParams)} - groups.keys() - set(DERIVED)
    clients_use_labels = config.data.client_labels > 0 and config.federation.mu > 0
    labeled_rows = config.batch_size // (1 + config.federation.mu) if clients_use_labels else 0
    if labels_alone:
        labeled_rows = config.batch_size
    return HParams(
        labeled_rows=labeled_rows,
        server_trains=config.k_s > 0,
        num_clients=config.federation.num_clients,
        options=options,
        **groups,
        **{name: config[name] for name in names},
    )


def learning_rate(hparams: HParams, round_index: Array) -> Array:
    """The learning rate [] of round `round_index` [], from 0: it falls from `lr` to `lr_min` in round `lr_rounds`.

    It follows a cosine (SemiSFL, Section V-C; the floor is from the authors' code) or, with `lr_schedule` 'poly',
    (1 - progress)^0.9, as is usual in segmentation.
    """
    progress = jnp.minimum(round_index / hparams.lr_rounds, 1.0)
    if hparams.lr_schedule == 'poly':
        return hparams.lr_min + (hparams.lr - hparams.lr_min) * (1.0 - progress) ** POLY_POWER
    return hparams.lr_min + 0.5 * (hparams.lr - hparams.lr_min) * (1.0 + jnp.cos(jnp.pi * progress))


def optimizer(hparams: HParams, lr: Array) -> optax.GradientTransformation:
    """SGD as in PyTorch: the L2 term is added to the gradient before the momentum.

    Every phase of a round starts with a fresh state, unless `local.optimizer_state` is 'kept'. `optimizer` 'adam' uses
    Adam instead, with `momentum` as beta_1. With `clip_norm`, the gradient is first clipped to that global norm.
    """
    step = (
        optax.adam(lr, b1=hparams.momentum)
        if hparams.optimizer == 'adam'
        else optax.sgd(lr, momentum=hparams.momentum or None, nesterov=hparams.nesterov)
    )
    # What would only multiply by zero is left out: XLA must compute it, for the sake of infinities.
    clip = (optax.clip_by_global_norm(hparams.clip_norm),) if hparams.clip_norm else ()
    decay = (optax.add_decayed_weights(hparams.weight_decay),) if hparams.weight_decay else ()
    return optax.chain(*clip, *decay, step)


def moments_kept(hparams: HParams) -> int:
    """How many arrays of a model's size the state of `optimizer` holds: two of Adam, one of SGD with momentum."""
    return {'adam': 2, 'sgd': int(hparams.momentum > 0)}[hparams.optimizer]


def plain_steps(hparams: HParams, steps: Array | int) -> Array:
    """How many plain steps of SGD move a model as far as `steps` [...] steps with momentum, under a constant gradient.

    The norm of a_k of FedNova (Wang et al., 2020), by which it divides the update of a client. Without momentum it is
    `steps` itself; with momentum rho it is sum_t (1 - rho^t) / (1 - rho), and with Nesterov's `steps` plus rho times
    that. Valid for SGD only.
    """
    count, rho = jnp.asarray(steps, jnp.float32), hparams.momentum
    if not rho:
        return count
    heavy = (count - rho * (1.0 - rho**count) / (1.0 - rho)) / (1.0 - rho)
    return count + rho * heavy if hparams.nesterov else heavy
