"""The record that describes a method. Each method's file makes one and registers it."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from semisfl_jax.algorithms.ranges import LR, Range
from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.types import Algorithm, ClientAxis, Views
from semisfl_jax.costs import ClientCost, CostContext
from semisfl_jax.models import SplitModel

Flat = Mapping[str, Any]  # a flat configuration: {'data.name': 'digits', ...}

# What a key may ask of a method that reads it (`Method.uses`)
FEATURES = (
    *('cut', 'tasks', 'pre-rounds', 'sampling', 'pseudo-labels', 'consistency', 'clustering', 'teacher'),
    *('client teacher', 'objective', 'local', 'steps', 'kept optimizers', 'prox', 'mean teacher', 'uda'),
)

# (model, views, hparams, axis) -> the method. `model` is a SplitModel, or a tuple of `TaskModel` for dense tasks;
# `axis` maps over the clients of a round.
Build = Callable[[Any, Views, HParams, ClientAxis], Algorithm]
SERVER = ('needed', 'optional', 'none')
K_S_RULES = ('paper', 'code', 'coverage', 'fixed')


class Look(NamedTuple):
    """How figures draw a method."""

    color: str  # '#RRGGBB'
    marker: str  # Matplotlib's name
    dash: str | tuple[int, tuple[float, ...]]


class Parts(NamedTuple):
    """The model, views and hyper-parameters of a method: the first argument of its functions."""

    model: SplitModel
    views: Views
    hparams: HParams

    @property
    def options(self) -> Any:
        """The options of the method."""
        return self.hparams.options


DIGITS = ('digits', 'mnist')  # 'official' views do not flip these: a mirrored digit is a different digit or none


def protocol(
    clients: int, active: int, rounds: int, lr: float, momentum: float, batch_size: int, epochs: int
) -> dict[str, Any]:
    """Returns what 'official' settings share: passes over weak views at a learning rate that stays constant by default.

    Args:
      clients: number of clients.
      active: clients in each round.
      rounds: number of rounds.
      lr: learning rate, also the lowest.
      momentum: of SGD, without Nesterov.
      batch_size: images in a client's batch.
      epochs: passes of a client over its images in a round.

    Returns:
      Values by configuration key.
    """
    return {
        'federation.num_clients': clients,
        'federation.num_active': active,
        'rounds': rounds,
        'pre_rounds': 0,
        'lr': lr,
        'lr_min': lr,
        'momentum': momentum,
        'nesterov': False,
        'weight_decay': 0.0,
        'batch_size': batch_size,
        'local.epochs': epochs,
        'augment.supervised': 'weak',
    }


@dataclasses.dataclass(frozen=True, eq=False)
class Method:
    """A federated method: how to build it, and everything the rest of the package needs to know about it.

    Attributes:
      name: value of `config.algorithm`.
      build: builds the method from a model and a configuration.
      title: name in figures and tables; defaults to `name`.
      source: the paper.
      options: a frozen dataclass whose fields, made by `algorithms.option`, are configuration keys with their defaults;
        `hparams.options` holds an instance of it.
      group: prefix of these keys, `config.GROUP.FIELD`; defaults to `name`. Methods may share a group.
      uses: names of FEATURES. A run is rejected if it changes keys of any other feature, or options of another method.
      needs: values by key that the method needs where the defaults will not do. Sweeps set them, messages name them,
        and `check` may refuse other values.
      server: whether it trains at the server, on the server's images: 'needed'; 'optional', k_s may be 0; 'none', k_s
        is 0.
      clients: whether it has clients. Without clients, no cohort is drawn and no client image is read.
      reads: what a client reads in a round: 'batches', or 'sets' for all its images.
      labels_alone: flat configuration -> whether clients train only on labeled images.
      counts_all: whether it trains on all unlabeled images, however unsure their labels, and in weak views alone.
      own_top: for a method that cuts the model, whether each top sees the rows of only one client at a time.
      k_s_rule: meaning of `k_s_rule=auto`: the method's own controller of K_s, one of K_S_RULES.
      steps: meaning of `local.steps=auto`, one of `sampling.STEPS`: how its paper counts the iterations of passes.
      by_images: meaning of `local.weighting=auto`: whether its paper weights clients by their numbers of images.
      keeps_optimizers: meaning of `local.optimizer_state=auto`: whether its authors keep optimizers across rounds.
      sequential: flat configuration -> why its clients cannot be computed in parallel; '' if they can.
      dense: whether it trains dense tasks (`data.tasks`) rather than classification. Its model is then a tuple of
        `TaskModel`, one for each task.
      in_parts: whether its model is more than `State.student`; its features are then not plotted.
      check: raises UserError if values of a flat configuration, each valid by itself, make no sense for the method.
      official: flat configuration -> the values in the method's own papers, by key; or a string that says why there are
        none.
      price: `CostContext` -> what a client sends, receives and computes in a round; None: unknown, so runs report no
        costs.
      metrics: its own keys of metrics.jsonl, with their meaning.
      look: how figures draw it; by default, the next look that no method uses.
      ranges: where a sweep searches, by key (docs/sweeps.md): its own options and shared hyper-parameters that it
        reads. By default the learning rate; empty: there is nothing to tune.
      variants: forms in which the method is measured: keys and values in addition to `needs`, by name; '' if there is
        only one.
    """

    name: str
    build: Build
    title: str = ''
    source: str = ''
    options: type | None = None
    group: str = ''
    uses: tuple[str, ...] = ()
    needs: Flat = dataclasses.field(default_factory=dict)
    server: str = 'needed'
    clients: bool = True
    reads: str = 'batches'
    labels_alone: Callable[[Flat], bool] = lambda flat: False
    counts_all: bool = False
    own_top: bool = False
    k_s_rule: str = 'fixed'
    steps: str = 'unlabeled'
    by_images: bool = False
    keeps_optimizers: bool = False
    sequential: Callable[[Flat], str] = lambda flat: ''
    dense: bool = False
    in_parts: bool = False
    check: Callable[[Flat], None] = lambda flat: None
    official: Callable[[Flat], Flat] | str = 'no values from its papers are recorded'
    price: Callable[[CostContext], ClientCost] | None = None
    metrics: Mapping[str, str] = dataclasses.field(default_factory=dict)
    look: Look | None = None
    ranges: Mapping[str, Range] = dataclasses.field(default_factory=lambda: {'lr': LR})
    variants: Mapping[str, Flat] = dataclasses.field(default_factory=lambda: {'': {}})

    @property
    def label(self) -> str:
        """The name in figures and tables."""
        return self.title or self.name

    @property
    def option_group(self) -> str:
        """The group of its options in a configuration, '' if it has none."""
        return (self.group or self.name) if self.options else ''

    @property
    def auto(self) -> dict[str, str]:
        """The meaning of 'auto', by key."""
        return {
            'k_s_rule': self.k_s_rule,
            'local.weighting': 'samples' if self.by_images else 'uniform',
            'local.optimizer_state': 'kept' if self.keeps_optimizers else 'fresh',
            'local.steps': self.steps,
        }

    @property
    def cuts(self) -> bool:
        """True if the model is cut between client and server."""
        return 'cut' in self.uses and self.clients

    @property
    def clusters(self) -> bool:
        """True if its supervised steps have a contrastive loss."""
        return 'clustering' in self.uses and self.clients

    @property
    def whole_model(self) -> bool:
        """True if clients train the whole model."""
        return self.clients and not self.cuts
