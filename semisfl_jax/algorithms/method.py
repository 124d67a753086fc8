"""The record that describes a method, registered by the file that defines it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from semisfl_jax import sampling
from semisfl_jax.algorithms import ranges as ranges_lib
from semisfl_jax.algorithms.ranges import LR, Range
from semisfl_jax.costs import ClientCost, CostContext
from semisfl_jax.errors import UserError
from semisfl_jax.hparams import HParams
from semisfl_jax.types import Algorithm, ClientAxis, Views
from semisfl_jax.wording import found, use_one_of

Flat = Mapping[str, Any]  # a flat configuration: {'data.name': 'digits', ...}

# Configuration keys that only some methods read, by feature name (`Method.uses`).
FEATURES: dict[str, tuple[str, ...]] = {
    'pseudo-labels': ('pseudo_labels',),
    'cut': ('model.split_index',),
    'clustering': (
        'clustering_weight',
        'contrastive_weight',
        'temperature',
        'supervised_references',
        'queue',
        'queue_empty_slots',
        'server_teacher_bn',
    ),
    'client teacher': ('client_teacher_ema', 'client_teacher_bn'),
    'teacher': ('ema_decay', 'ema_warmup'),
    'consistency': ('consistency_weight',),
    'pre-rounds': ('pre_rounds',),
    'sampling': ('sampling',),
    'local': ('local.epochs', 'local.weighting'),
    'steps': ('local.steps',),
    'kept optimizers': ('local.optimizer_state',),
    'objective': ('local.objective',),
    'prox': ('local.prox',),
    'uda': ('uda.temperature', 'uda.tsa'),
    'mean teacher': ('local.teacher_decay',),
    'tasks': ('data.tasks', 'data.task_images', 'model.output_stride', 'model.weights'),
}
SERVER = ('needed', 'optional', 'none')


class Look(NamedTuple):
    """How figures draw a method."""

    color: str  # '#RRGGBB'
    marker: str  # of Matplotlib
    dash: str | tuple[int, tuple[float, ...]]


class Build(Protocol):
    """Builds a method."""

    def __call__(self, model: Any, views: Views, hparams: HParams, axis: ClientAxis, /) -> Algorithm:
        """`model`: a SplitModel; a tuple of `phases.TaskModel` for a method of dense tasks. `axis`: the clients of a
        round as the method sees them."""


@dataclasses.dataclass(frozen=True, eq=False)
class Method:
    """A federated method: how it is built, and everything the rest of the package needs to know about it.

    Attributes:
      name: value of `config.algorithm`.
      build: the method, from a model and a configuration.
      title: name in figures and tables; defaults to `name`.
      source: the paper.
      options: a frozen dataclass whose fields, made by `option`, are configuration keys with their defaults;
        `hparams.options` holds an instance of it.
      group: prefix of these keys, `config.GROUP.FIELD`; defaults to `name`. Methods may share a group.
      uses: names of FEATURES. A run that changes keys of any other feature, or options of another method, is
        rejected.
      needs: required values, by key.
      server: whether it trains at the server, on the server's images: 'needed'; 'optional', k_s may be 0; 'none', k_s
        is 0.
      clients: whether it has clients. Without clients, no cohort is drawn and no client image is read.
      reads: what a client reads in a round: 'batches', or 'sets' for all its images.
      labels_alone: flat configuration -> whether clients train only on labeled images.
      own_top: for a method that cuts the model, whether each top sees the rows of only one client at a time.
      adapts_k_s: meaning of `k_s_rule=auto`: whether the K_s controller is part of the method.
      steps: meaning of `local.steps=auto`, one of `sampling.STEPS`: how its paper counts the iterations of passes.
      by_images: meaning of `local.weighting=auto`: whether its paper weights clients by their numbers of images.
      keeps_optimizers: meaning of `local.optimizer_state=auto`: whether its authors keep optimizers across rounds.
      sequential: flat configuration -> why its clients cannot be computed in parallel; '' if they can.
      rows_at_once: options -> size of a batch that is not set by the configuration's batch sizes; for memory estimates.
      dense: whether it trains dense tasks (`data.tasks`) rather than classification. Its model is then a tuple of
        `phases.TaskModel`, one for each task.
      in_parts: whether its model is more than `State.student`, in which case its features are not plotted.
      check: raises UserError if a flat configuration of individually valid values makes no sense for the method.
      official: flat configuration -> the values of the method's own papers, by key; or a string saying why there are
        none.
      price: `CostContext` -> what a client sends, receives and computes in a round; None: unknown, and its runs
        have no costs.
      metrics: its own keys of metrics.jsonl, with their meaning.
      look: how figures draw it; by default, the next look that no method uses.
      ranges: where a sweep searches, by key (docs/sweeps.md): options of its own and shared hyper-parameters that it
        reads. By default the learning rate; empty: it has nothing to tune.
      variants: the forms in which it is measured: keys and values in addition to `needs`, by name; '' if there is only
        one.
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
    own_top: bool = False
    adapts_k_s: bool = False
    steps: str = 'unlabeled'
    by_images: bool = False
    keeps_optimizers: bool = False
    sequential: Callable[[Flat], str] = lambda flat: ''
    rows_at_once: Callable[[Any], int] = lambda options: 0
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
        """Name in figures and tables."""
        return self.title or self.name

    @property
    def option_group(self) -> str:
        """Group of its options in a configuration, '' if it has none."""
        return (self.group or self.name) if self.options else ''

    @property
    def cuts(self) -> bool:
        """Whether the model is cut between client and server."""
        return 'cut' in self.uses and self.clients

    @property
    def clusters(self) -> bool:
        """Whether its supervised steps have a contrastive loss."""
        return 'clustering' in self.uses and self.clients

    @property
    def teacher_at_clients(self) -> bool:
        """Whether clients receive the teacher's bottom."""
        return 'client teacher' in self.uses and self.clients

    @property
    def separate_clients(self) -> bool:
        """Whether every part of the model sees the rows of only one client at a time."""
        return self.whole_model or self.own_top

    @property
    def whole_model(self) -> bool:
        """Whether clients train the whole model."""
        return self.clients and not self.cuts


def option(
    default: Any,
    meaning: str,
    *,
    choices: tuple[str, ...] = (),
    at_least: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    ignorable: bool = False,
    scales_memory: bool = False,
) -> Any:
    """A field of a method's options: a key of the configuration.

    Args:
      default: its default value, which also determines its type.
      meaning: its description, shown in docs/options.md.
      choices: the allowed values, if they are names.
      at_least, above, below: bounds of a number.
      ignorable: whether runs of other methods may change it, as a data set's configuration does for this method.
      scales_memory: whether memory use grows with it, so that messages about memory mention it.
    """
    bounds = {'choices': choices, 'at_least': at_least, 'above': above, 'below': below}
    return dataclasses.field(
        default=default, metadata={'meaning': meaning, 'ignorable': ignorable, **bounds, 'scales_memory': scales_memory}
    )


METHODS: dict[str, Method] = {}  # by name; `register` adds to it
_OURS = 'semisfl_jax.algorithms.'


def register(method: Method) -> Method:
    """Registers a method under its name, for configurations, commands, costs, figures and studies.

    An external method may be registered again, as when a notebook cell is run twice; built-in methods cannot be
    replaced.

    Raises:
      ValueError: an inconsistent record, or a name or group that is already taken.
    """
    if not isinstance(method, Method):
        raise ValueError(f'register: {found(method)} is no method; give a Method(name, build, ...)')
    if not isinstance(method.name, str) or not method.name.isidentifier():
        raise ValueError(f"method '{method.name}': a name has letters, digits and underscores, as in 'my_method'")
    if not callable(method.build):
        raise ValueError(f"method '{method.name}': build={method.build}; give the function that builds the method")
    _check_kinds(method)
    existing = METHODS.get(method.name)
    if existing and existing.build.__module__.startswith(_OURS) and existing.build is not method.build:
        raise ValueError(f"method '{method.name}': the package has a method of that name; choose another name")
    if wrong := [name for name in method.uses if name not in FEATURES]:
        raise ValueError(
            f"method '{method.name}': '{wrong[0]}' in uses is not a feature; {use_one_of(wrong[0], FEATURES)}"
        )
    choices = {'reads': sampling.READS, 'server': SERVER, 'steps': sampling.STEPS}
    for field, values in choices.items():
        value = getattr(method, field)
        if value not in values:
            raise ValueError(f"method '{method.name}': {field}='{value}'; use one of {', '.join(values)}")
    if method.options is not None and not _is_frozen(method.options):
        raise ValueError(
            f"method '{method.name}': options must be a frozen dataclass whose fields are made with `option`"
        )
    owner = next((other for other in METHODS.values() if other.option_group == method.option_group != ''), None)
    if owner and owner.name != method.name and owner.options is not method.options:
        raise ValueError(f"method '{method.name}': config.{method.option_group} holds the options of {owner.name}")
    _check_defaults(method)
    _check_ranges(method)
    METHODS[method.name] = method
    return method


def _check_kinds(method: Method) -> None:
    """Raises ValueError for a field that is not of the kind that it has in the record."""
    for field in ('uses', 'needs', 'metrics', 'ranges', 'variants'):
        kind, name = (tuple | list, 'tuple') if field == 'uses' else (Mapping, 'dict')
        if not isinstance(value := getattr(method, field), kind):
            raise ValueError(f"method '{method.name}': {field} is {found(value)}; give a {name}, or leave it out")
    for field in ('labels_alone', 'sequential', 'rows_at_once', 'check', 'price'):
        value = getattr(method, field)
        if not callable(value) and not (field == 'price' and value is None):
            raise ValueError(f"method '{method.name}': {field} is {found(value)}; give a function, or leave it out")


def _check_defaults(method: Method) -> None:
    """Raises ValueError for an option whose default is out of its own range: every run would be refused for it, those
    of other methods, too."""
    for field in dataclasses.fields(method.options) if method.options else ():
        try:
            check_option(f'{method.option_group}.{field.name}', field, field.default)
        except UserError as error:
            raise ValueError(f"method '{method.name}': the default of an option: {error}") from error


def _check_ranges(method: Method) -> None:
    """Raises ValueError for a range of a key that the method does not read, or with values that the key cannot have."""
    unread = {key: name for name, keys in FEATURES.items() if name not in method.uses for key in keys}
    fields = dataclasses.fields(method.options) if method.options else ()
    options = {f'{method.option_group}.{field.name}': field for field in fields}
    for key, range_ in method.ranges.items():
        defaults = {name: field.default for name, field in options.items()}
        if fault := ranges_lib.fault(key, range_, unread, defaults):
            raise ValueError(f"method '{method.name}': ranges has {key}: {fault}")
        for value in range_.ends if key in options else ():
            try:
                check_option(key, options[key], value)
            except UserError as error:
                raise ValueError(f"method '{method.name}': ranges: {error}") from error


def _is_frozen(options: type) -> bool:
    parameters = getattr(options, '__dataclass_params__', None)
    return bool(parameters and parameters.frozen and all(f.metadata for f in dataclasses.fields(options)))


def get(name: str) -> Method:
    """The method `name`.

    Raises:
      UserError: an unknown name.
    """
    if name not in METHODS:
        raise UserError(f"algorithm='{name}' is unknown; {use_one_of(name, METHODS)}")
    return METHODS[name]


def option_groups() -> dict[str, type]:
    """The options of all methods, by group."""
    return {method.option_group: method.options for method in METHODS.values() if method.options}


def option_fields() -> dict[str, dataclasses.Field]:
    """The options of all methods by key, such as 'fedmatch.helpers', with defaults and the metadata from `option`."""
    return {
        f'{group}.{field.name}': field
        for group, options in option_groups().items()
        for field in dataclasses.fields(options)
    }


def check_option(key: str, field: dataclasses.Field, value: Any) -> None:
    """Checks one value of a method's options.

    Raises:
      UserError: an unknown choice or a number out of range.
    """
    rules = field.metadata
    if rules['choices'] and value not in rules['choices']:
        raise UserError(f"config.{key}='{value}' is unknown; {use_one_of(str(value), rules['choices'])}")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        low, above, below = rules['at_least'], rules['above'], rules['below']
        if not (math.isfinite(value) and low <= value and above < value < below):
            raise UserError(f'config.{key}={value} {_range(low, above, below)}')


def _range(at_least: float, above: float, below: float) -> str:
    lowest = 'above 0' if above == 0 else f'above {above:g}' if above > -math.inf else ''
    if at_least > -math.inf:
        lowest = f'{at_least:g} or more' if at_least <= 0 else f'at least {at_least:g}'
    if below == math.inf:
        return f'must be {lowest}' if lowest else 'must be a finite number'
    return f'must be in [{at_least:g}, {below:g})' if at_least > -math.inf else f'must be {lowest} and below {below:g}'


def options_of(method: Method, values: Mapping[str, Any]) -> Any:
    """The options of a method from a flat configuration, None if it has none."""
    if method.options is None:
        return None
    names = [field.name for field in dataclasses.fields(method.options)]
    given = {name: values[f'{method.option_group}.{name}'] for name in names}
    # JSON has no tuples
    return method.options(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})
