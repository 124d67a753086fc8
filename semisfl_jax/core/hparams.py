"""The static hyper-parameters of a method, most of which are keys of a configuration."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from semisfl_jax.base.keys import declared, key
from semisfl_jax.core.sampling import BatchPlan
from semisfl_jax.core.types import Array

POLY_POWER = 0.9
STRONG = ('fixmatch', 'uda')  # objectives with strong views
UNLABELED = (*STRONG, 'pseudo_label', 'mean_teacher')  # objectives that learn from unlabeled images
_NO_PSEUDO_LABELS = {'pseudo_labels': 'none'}


# fmt: off
# Tables: name, type and default of a key, its values and readers, its meaning

@dataclasses.dataclass(frozen=True)
class Local:
    """Local training at the clients."""

    objective: str = key('fixmatch', choices=('supervised', *UNLABELED),
        feature='objective', help='loss of clients in fedavg and fedprox; supervised: labeled images only | '
        'pseudo_label: labels once a round, by the received model | mean_teacher; both without strong views')
    epochs: int = key(0, at_least=0, feature='local', help='passes of a client over its images (semifl: confident '
        'ones) in a round; 0: k_u iterations')
    steps: str = key('unlabeled', choices=('unlabeled', 'longest'), feature='steps', help='iterations per '
        'pass: unlabeled: to see every unlabeled image, rounded up | longest: to see all unlabeled or all labeled '
        "images, whichever takes longer, rounded down | auto: as in the method's paper")
    weighting: str = key('uniform', choices=('samples', 'uniform'), feature='local', help='weights of the '
        'average over clients: samples: by the number of images that each trains on | uniform | auto: as in the '
        "method's paper")
    optimizer_state: str = key('fresh', choices=('fresh', 'kept'), feature='kept optimizers',
        help='kept: a client continues with the optimizer state of its last round, and so does the server of semifl | '
        "fresh | auto: as the method's authors do")
    prox: float = key(0.01, at_least=0, feature='prox', help='mu of fedprox')
    teacher_decay: float = key(0.99, at_least=0, below=1, feature='mean teacher', idle=_NO_PSEUDO_LABELS,
        help="mean_teacher: decay of each client's teacher, a moving average")
    input_noise: float = key(0.0, at_least=0, feature='mean teacher', objectives=('mean_teacher',),
        help='mean_teacher: standard deviation of Gaussian noise on normalized images, drawn for teacher and student '
        "each; 0.15 in its authors' code. Without views and dropout, teacher and student differ only in this noise")
    ramp_rounds: int = key(0, at_least=0, feature='objective', objectives=('pseudo_label', 'mean_teacher'),
        idle=_NO_PSEUDO_LABELS, help='pseudo_label, mean_teacher: rounds in which the weight of the unlabeled loss '
        'rises, linearly from 0, or as exp(-5 (1 - round / ramp_rounds)^2); 0: no ramp')


@dataclasses.dataclass(frozen=True)
class Uda:
    """Objective 'uda' of local training."""

    temperature: float = key(1.0, above=0, feature='uda', idle=_NO_PSEUDO_LABELS, help='softmax temperature '
        'of pseudo-labels; below 1 sharpens them')
    tsa: str = key('off', choices=('off', 'linear', 'exp', 'log'), feature='uda', help='training signal annealing of '
        "the clients' labels, over `lr_rounds` rounds as the learning rate")


@dataclasses.dataclass(frozen=True)
class HParams:
    """The numbers and options that shape a jitted round: its keys, and what a method or other keys make of it."""

    k_s: int = key(100, at_least=0, help='K_s, supervised iterations in the first round; 0: the server has no '
        'images')
    k_u: int = key(50, at_least=1, part='clients', help='K_u, cross-entity iterations per round, or local iterations '
        'of a client')
    batch_size: int = key(64, at_least=1, at_most=10**6, part='clients', help='B, images per client and iteration')
    server_batch_size: int = key(64, at_least=1, at_most=10**6, idle={'k_s': 0}, help='B_s, images per supervised '
        'iteration')
    pre_rounds: int = key(0, at_least=0, feature='pre-rounds', part='clients', help='number of initial rounds without '
        'a cross-entity phase')
    sampling: str = key('epochs', choices=('epochs', 'replicated'), feature='sampling', help='the order of images in '
        'batches, at server and clients: epochs: every image once per pass, in a new random order | replicated, as in '
        "the authors' loaders: a list too short for the batches of a (first) round is repeated until it is long "
        'enough, then shuffled, so that a batch may contain an image twice; an incomplete last batch is dropped')

    # --- optimization: fresh momentum each round, lr falls to lr_min over lr_rounds

    optimizer: str = key('sgd', choices=('sgd', 'adam'), help='adam: with momentum as beta_1 and nesterov=False')
    lr: float = key(0.02, above=0, help='learning rate of the first round')
    lr_min: float = key(0.005, at_least=0, help='learning rate at the end')
    lr_rounds: int = key(1000, at_least=0, help='rounds over which it falls to lr_min, where it stays; 0 means '
        '`rounds`')
    lr_schedule: str = key('cosine', choices=('cosine', 'poly'), help='decay of the learning rate; poly: '
        '(1 - round / lr_rounds)^0.9')
    momentum: float = key(0.9, at_least=0, below=1, help='momentum of SGD, or beta_1 of Adam')
    nesterov: bool = key(True, idle={'momentum': 0}, help="Nesterov's form of the momentum")
    weight_decay: float = key(5e-4, at_least=0, help='the weight of an L2 term')

    # --- losses

    threshold: float = key(0.95, at_least=0, at_most=1, objectives=(*STRONG, 'pseudo_label'),
        idle={'pseudo_labels': ('true', 'none')}, help='tau: minimum confidence for a pseudo-label to count; 0: all '
        'count')
    pseudo_labels: str = key('method', choices=('method', 'true', 'none'), feature='pseudo-labels', added=True,
        help='baselines of a method: true: an oracle, whose pseudo-labels are the true labels, all of them confident | '
        'none: pseudo-labels are ignored; the rest is unchanged, except that K_s stays constant, as there is no '
        'unlabeled loss to adapt to')
    temperature: float = key(0.2, above=0, feature='clustering', part='clients', help='kappa in the contrastive losses')
    consistency_weight: float = key(1.0, at_least=0, feature='consistency', part='clients',
        objectives=UNLABELED, help='weight of H in the cross-entity phase, or of the unlabeled loss in local training')
    clustering_weight: float = key(1.0, at_least=0, feature='clustering', part='clients', help='weight of the '
        'clustering regularization C in the cross-entity phase (Eq. 6)')
    contrastive_weight: float = key(1.0, at_least=0, feature='clustering', part='clients', help='weight of the '
        'supervised-contrastive loss T in the supervised phase (Eq. 4)')
    supervised_references: str = key('teacher_keys', choices=('teacher_keys', 'student_supcon'), feature='clustering',
        part='clients', help='what T compares with; student_supcon: exactly Eq. 3')

    # --- memory queue

    queue: str = key('two_level', choices=('two_level', 'single_ring', 'off'), feature='clustering', part='clients',
        help="single_ring: as in the authors' code")
    queue_size: int = key(1024, at_least=1, part='memory queue', idle={'queue': 'off'}, help='slots per level')
    queue_stride: int = key(10, at_least=1, part='memory queue', idle={'queue': ('off', 'single_ring')},
        help='two_level: iterations after which unlabeled keys also enter the supervised level')
    queue_empty_slots: str = key('auto', choices=('auto', 'ignore', 'count'), feature='clustering', part='clients',
        idle={'queue': 'off'}, help='count: zeros in the denominator | auto: count in single_ring')

    # --- teacher

    ema_decay: float = key(0.99, at_least=0, below=1, feature='teacher', help='gamma, decay of the teacher, '
        'a moving average of the student')
    ema_warmup: bool = key(True, feature='teacher', help='True: the decay of step t is min(1 - 1 / (t + 1), gamma)')
    client_teacher_ema: bool = key(False, feature='client teacher', part='clients', help='Eq. 8: clients also update '
        'their copy of the teacher bottom')
    client_teacher_bn: str = key('eval', choices=('eval', 'train'), feature='client teacher', part='clients',
        help='train: the teacher bottom at the clients uses batch statistics, and dropout if the model has any in it '
        '(cnn13)')
    server_teacher_bn: str = key('eval', choices=('eval', 'train_first_round'), feature='clustering', part='clients',
        help='train_first_round: so does the one at the server in the first round, and updates its running statistics, '
        "as in the authors' code until it first tests the teacher in evaluation mode")

    # --- not keys

    labeled_rows: int = 0  # labeled images at the start of a client batch (Fig. 10); all of it if only labels train
    server_trains: bool = True  # K_s is above 0; each round receives its own k_s as an argument
    num_clients: int = 30
    clip_norm: float = 0.0  # bound on the norm of every gradient, 0: off; set by methods that clip
    short_batches: bool = False  # the server's last batch of a pass may be short; set by methods
    local: Local = Local()
    uda: Uda = Uda()
    options: Any = None  # the method's own, an instance of `Method.options`
    # fmt: on

    @property
    def batches(self) -> BatchPlan:
        """The batches that a client reads in a round: how many, of which images, in which order."""
        epochs, steps = self.local.epochs, self.local.steps
        return BatchPlan(self.k_u, self.batch_size, self.labeled_rows, epochs, steps, self.sampling)


GROUPS = {'local': Local, 'uda': Uda}  # groups of keys that methods share
KEYS = declared(HParams) | declared(Local, 'local') | declared(Uda, 'uda')


def with_values(hparams: HParams, values: Mapping[str, Any]) -> HParams:
    """Replaces values by key, which may be traced; those of no group in GROUPS are options of the method."""
    groups: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        group, _, name = path.rpartition('.')
        groups.setdefault(group, {})[name] = value
    changes = groups.pop('', {})
    for group, fields in groups.items():
        name = group if group in GROUPS else 'options'
        changes[name] = dataclasses.replace(getattr(hparams, name), **fields)
    return dataclasses.replace(hparams, **changes)


def nonzero(value: float | Array) -> bool:
    """Tells whether a number is not the constant 0: one that differs between the trials of a program never is."""
    return isinstance(value, jax.core.Tracer) or bool(value)


def learning_rate(hparams: HParams, round_index: Array) -> Array:
    """Computes the learning rate of a round, which falls from `lr` in round 0 to `lr_min` in round `lr_rounds`.

    It follows a cosine (SemiSFL, Section V-C; the floor is from the authors' code) or, with `lr_schedule` 'poly', (1 -
    progress)^0.9, as is usual in segmentation.

    Args:
      hparams: `lr`, `lr_min`, `lr_rounds` and `lr_schedule` are read.
      round_index: [], from 0.

    Returns:
      The learning rate [].
    """
    progress = jnp.minimum(round_index / hparams.lr_rounds, 1.0)
    if hparams.lr_schedule == 'poly':
        return hparams.lr_min + (hparams.lr - hparams.lr_min) * (1.0 - progress) ** POLY_POWER
    return hparams.lr_min + 0.5 * (hparams.lr - hparams.lr_min) * (1.0 + jnp.cos(jnp.pi * progress))


def optimizer(hparams: HParams, lr: Array) -> optax.GradientTransformation:
    """Builds SGD as in PyTorch: the L2 term is added to the gradient before the momentum.

    Every phase of a round starts with a fresh state, unless `local.optimizer_state` is 'kept'. `optimizer` 'adam' uses
    Adam instead, with `momentum` as beta_1. With `clip_norm`, the gradient is first clipped to that global norm.

    Args:
      hparams: the options of the optimizer.
      lr: [], the learning rate, which may be traced.

    Returns:
      The gradient transformation.
    """
    step = (
        optax.adam(lr, b1=hparams.momentum)
        if hparams.optimizer == 'adam'
        else optax.sgd(lr, momentum=hparams.momentum if nonzero(hparams.momentum) else None, nesterov=hparams.nesterov)
    )
    # Leave out what would only multiply by zero: infinities forbid XLA to drop it.
    clip = (optax.clip_by_global_norm(hparams.clip_norm),) if nonzero(hparams.clip_norm) else ()
    decay = (optax.add_decayed_weights(hparams.weight_decay),) if nonzero(hparams.weight_decay) else ()
    return optax.chain(*clip, *decay, step)


def moments_kept(hparams: HParams) -> int:
    """Returns how many model-sized arrays the state of `optimizer` holds: 2 with Adam, 1 with momentum, else 0."""
    return {'adam': 2, 'sgd': int(hparams.momentum > 0)}[hparams.optimizer]


def plain_steps(hparams: HParams, steps: Array | int) -> Array:
    """Counts the plain SGD steps that, under a constant gradient, move a model as far as `steps` steps with momentum.

    FedNova (Wang et al., 2020) divides a client's update by this, the norm of its a_k. Without momentum it is `steps`
    itself; with momentum rho it is sum_t (1 - rho^t) / (1 - rho), and with Nesterov's `steps` plus rho times that sum.

    Args:
      hparams: `momentum` and `nesterov` are read; valid for SGD only.
      steps: [...].

    Returns:
      [...] float32.
    """
    count, rho = jnp.asarray(steps, jnp.float32), hparams.momentum
    if not nonzero(rho):
        return count
    heavy = (count - rho * (1.0 - rho**count) / (1.0 - rho)) / (1.0 - rho)
    return count + rho * heavy if hparams.nesterov else heavy
