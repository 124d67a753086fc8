"""The static hyper-parameters of a method, read from a configuration once."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from semisfl_jax.core.sampling import BatchPlan
from semisfl_jax.core.types import Array

if TYPE_CHECKING:  # the folder of a checkout, which mypy can find
    from configs import default
else:
    from semisfl_jax.configs import default


POLY_POWER = 0.9
Uda = default.Uda


@dataclasses.dataclass(frozen=True)
class Local(default.Local):
    """`config.local`, resolved: what 'auto' stands for where a method does not say otherwise."""

    steps: str = 'unlabeled'
    weighting: str = 'uniform'
    optimizer_state: str = 'fresh'


GROUPS = {'local': Local, 'uda': Uda}  # option groups shared by several methods


@dataclasses.dataclass(frozen=True)
class HParams(default.Round):
    """Every number and option that shapes a jitted round: the keys under `Round` in configs/default.py, and these."""

    labeled_rows: int = 0  # labeled images at the start of a client batch (Fig. 10); if supervised, all of it
    server_trains: bool = True  # whether K_s is above 0; each round receives its own k_s as an argument
    num_clients: int = 30
    clip_norm: float = 0.0  # norm bound of every gradient, 0: off; set by methods that clip
    short_batches: bool = False  # the server's last batch of a pass may be short; set by methods
    local: Local = Local()
    uda: Uda = default.Uda()  # noqa: RUF009, which does not see that it is frozen
    options: Any = None  # the method's own, an instance of `Method.options`

    @property
    def batches(self) -> BatchPlan:
        """How many batches a client reads in a round, of which images, and in which order."""
        of_local = self.local.epochs, self.local.steps
        return BatchPlan(self.k_u, self.batch_size, self.labeled_rows, *of_local, self.sampling)


_ROUND = tuple(field.name for field in dataclasses.fields(default.Round))


def shared_defaults() -> dict[str, Any]:
    """The flat keys that `from_config` reads as they are, which methods share, and the defaults of HParams."""
    defaults = {name: getattr(HParams, name) for name in _ROUND}
    for group, keys in GROUPS.items():
        defaults |= {f'{group}.{field.name}': field.default for field in dataclasses.fields(keys)}
    return defaults


def from_config(config: ConfigDict, options: Any = None, labels_alone: bool = False) -> HParams:
    """Reads HParams from a resolved configuration, with the `options` of its method, in which clients may train on
    labeled images alone."""
    groups = {
        name: group(**{field.name: config[name][field.name] for field in dataclasses.fields(group)})
        for name, group in GROUPS.items()
    }
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
        **{name: config[name] for name in _ROUND},
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
