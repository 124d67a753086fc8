"""The types that modules share, with the shapes of their fields.

Letters used in shapes, here and in every docstring of the package:

    A   active clients of a round (N_h in the paper)   N   clients in total
    B   images of one client's mini-batch              S   samples of the largest client
    L   labeled images at the server                   M   images held by all clients together
    H, W, C   height, width and channels of an image   K   classes
    D   features at the cut, flattened                 P   width of the projection
    T   dense tasks; client n works on task n mod T
    Q   slots of one feature queue

Where a docstring says so, R stands for rows or trials, and T for references, iterations or rounds.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
from flax import struct

Array: TypeAlias = jax.Array
Variables: TypeAlias = Any  # a Flax variable dict: {'params': …} and, with BatchNorm, {'batch_stats': …}
Metrics: TypeAlias = dict[str, Array]  # name -> scalar
# `core.State`, or a method's own pytree with `round` [] int32 and `student`. Runs of several seeds also need its
# `replace`, and diagnostics the fields of `core.State`.
MethodState: TypeAlias = Any
Reported: TypeAlias = tuple[dict[str, Array], dict[str, Array]]  # means and counts of iterations, by name
Tree = TypeVar('Tree')  # a pytree; a result of this type has the structure of the argument


class SplitParams(NamedTuple):
    """The three pieces of a split model. Client copies of a piece gain a leading [A]."""

    bottom: Variables  # w_c, on the clients
    top: Variables  # w_s, on the server
    proj: Variables  # w_p, the projection head, on the server


# Features cross the cut: an array [B, D] or, between an encoder and a decoder, a tuple of maps [B, h, w, c].
#
# A piece of a model: (variables, images or features, key, train, rows=None) -> features or outputs, and variables: in
# training, with BatchNorm's running statistics updated. `key` is for dropout and may be None otherwise. `rows` [B] bool
# marks the valid rows of a partial batch in training; BatchNorm excludes all others. The top of a task of objects takes
# `targets` in training, samples of which `key` draws, and returns losses {name: []}.
Piece: TypeAlias = Callable[..., tuple[Any, Variables]]


class SplitModel(NamedTuple):
    """The three pieces as pure functions. Images are normalized floats [B, H, W, C].

    In a model for dense tasks (`semisfl_jax.models.split`), features are a tuple of maps, outputs are [B, H, W, C] or a
    dict of arrays [B, …], and there is no projection head: `tops` and `project` raise a UserError.
    """

    init: Callable[[Array], SplitParams]
    bottom: Piece  # images -> features e [B, D]
    top: Piece  # e -> logits [B, K]
    # The top in training mode on the rows of many clients, (variables, e [A, B, D], keys [A]) -> (logits [A, B, K],
    # variables). Each client draws dropout from its own key; BatchNorm uses the statistics of all rows.
    tops: Callable[[Variables, Array, Array], tuple[Array, Variables]]
    project: Callable[[Variables, Array], Array]  # e -> unit rows z [B, P]
    feature_size: int  # D: numbers per image that cross the cut
    projection_size: int  # P; 0: no projection head


# A client's loss [] in one iteration, and: the student with updated BatchNorm statistics, means, counts
LossValue: TypeAlias = tuple[Array, tuple[SplitParams, dict[str, Array], dict[str, Array]]]


class Federation(struct.PyTreeNode):
    """The data of one experiment, as arrays that the jitted round takes as arguments.

    `server_index` lists the rows of `server_images` that the server holds; when trials share one copy of the images,
    each trial has its own index. `index[n, :size[n]]` lists the rows of `client_images` that client n holds unlabeled,
    and `labeled_index[n, :labeled_size[n]]` those it holds with labels (normally none). The rest of a row is padding.
    Only diagnostics and `pseudo_labels` 'true' read the true labels of unlabeled images; -1 means unknown. When clients
    know all labels (fully labeled upper bounds), both tables hold the same rows.

    When `streamed`, the images stay on the host: `client_images` then holds only the rows that one round will
    read, in reading order, [A * K_u * B, H, W, C] for batches and [A * (S + S_l), H, W, C] for whole sets, and the
    tables are not used to look up rows.
    """

    server_images: Array  # [L, H, W, C] uint8; more rows if trials share them
    server_labels: Array  # [L] int32, likewise
    client_images: Array  # [M, H, W, C] uint8; more rows if trials share them
    client_labels: Array  # [M] int32, likewise
    server_index: Array  # [L] int32
    index: Array  # [N, S] int32
    size: Array  # [N] int32
    labeled_index: Array  # [N, S_l] int32, S_l may be 0
    labeled_size: Array  # [N] int32
    streamed: str = struct.field(pytree_node=False, default='')  # `client_images`: 'batches' | 'sets' | '' (all)
    # Dense tasks: {task: [M, H, W] uint8, or a dict of arrays [M, …]}, for the rows of `client_images`; streamed, only
    # for those its clients read
    client_targets: dict[str, Any] = struct.field(default_factory=dict)


class Cohort(NamedTuple):
    """The active clients of one round."""

    ids: Array  # [A] int32, ascending; with T tasks, `ids[i]` works on task i mod T, ascending within a task
    weight: Array  # [A] float32, 1 for a participating client, 0 for padding
    participations: Array  # [A] int32, earlier rounds in which the client has drawn batches


# An augmentation: key, images [B, H, W, C] uint8 -> uint8 of the same shape; one key for the whole batch
View: TypeAlias = Callable[[Array, Array], Array]


def _unmoved(key: Array, images: Array, targets: dict[str, Any]) -> tuple[Array, dict[str, Any]]:
    return images, targets


class Views(NamedTuple):
    """Maps stored images to network inputs."""

    weak: View
    strong: View
    supervised: View  # both views of the supervised phase
    normalize: Callable[[Array], Array]  # [..., H, W, C] uint8 -> float32, per-channel zero mean and unit variance
    # Key, images and {task: targets [B, H, W], or a dict of arrays [B, …]} -> weak views of both under the same motion
    together: Callable[[Array, Array, dict[str, Any]], tuple[Array, dict[str, Any]]] = _unmoved


def _same(tree: Tree) -> Tree:
    return tree


class ClientAxis(NamedTuple):
    """The client axis of a round as a method sees it: some clients are local, the rest live on other devices.

    A method maps over the local clients and says what to sum or gather over all clients. By default all clients are
    local and computed at once.
    """

    map: Callable[..., Callable] = jax.vmap  # map(function, in_axes=0): over the local clients, like `jax.vmap`
    psum: Callable[[Any], Any] = _same  # tree of sums over the local clients -> tree of sums over all clients
    all_gather: Callable[[Any], Any] = _same  # tree of local [A', ...] or [A' * B, ...] -> all, in the cohort's order


LOCAL_CLIENTS = ClientAxis()  # all at once, on this device

# Names of the models that a method evaluates. 'after_server' is the model after the server's own steps, in methods
# whose rounds end with the average over clients.
MODELS = ('teacher', 'student', 'after_server')


# The state before the first round, from the root key
Init: TypeAlias = Callable[[Array], MethodState]
# One round, a pure function, compiled once: the root key, state, federation, cohort and K_s [] int32, which may change
# from round to round -> state, metrics
Round: TypeAlias = Callable[[Array, Any, Federation, Cohort, Array], tuple[Any, Metrics]]
# What a method evaluates: state, images [B, H, W, C] uint8 -> {name: outputs}. In classification, names are from
# MODELS and outputs are logits [B, K]. In dense tasks, names are tasks and outputs are [B, H, W, outputs] or a dict of
# arrays [B, …], or a tuple of these if a task has more than one model.
Predict: TypeAlias = Callable[[Any, Array], dict[str, Any]]
# What the clients of a method minimize together, at the server's model: state, images [B, H, W, C] uint8 and their true
# labels [B] -> each image's loss if its client knows the label [B], and its loss if not [B]. A client's objective is
# the mean of the first over its labeled images plus the mean of the second over its unlabeled ones.
ClientLosses: TypeAlias = Callable[[Any, Array, Array], tuple[Array, Array]]


class Algorithm(NamedTuple):
    """A federated method under one configuration, as pure functions.

    Every call takes the experiment's root key; keys of rounds, clients and steps are derived inside with `rng.fold`,
    so no key needs to be saved.
    """

    init: Init
    round: Round
    predict: Predict
    headline: str  # the output of `predict` that is the method's headline
    tasks: Mapping[str, Any] = MappingProxyType({})  # output of `predict` -> `tasks.Task`; {}: all classify
    client_losses: ClientLosses | None = None  # evaluations then measure `loss_global` with it
