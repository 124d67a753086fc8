"""Models by name, split at any layer."""

from __future__ import annotations

import jax

from semisfl_jax.errors import UserError
from semisfl_jax.models import zoo
from semisfl_jax.models.layers import BATCH_NORM_VARIANCES, Compute
from semisfl_jax.models.lowerings import LOWERINGS
from semisfl_jax.models.split import SplitModel, cut
from semisfl_jax.wording import use_one_of

ARCHITECTURES = zoo.ARCHITECTURES
NAMES = tuple(ARCHITECTURES)
PROJECTIONS = ('mlp', 'linear', 'none')
CONVOLUTIONS = ('auto', *LOWERINGS)


def build(
    name: str,
    num_classes: int,
    image_shape: tuple[int, int, int],
    split_index: int | None = None,
    projection: str = 'mlp',
    projection_dim: int = 128,
    convolution: str = 'auto',
    dtype: str = 'float32',
    axes: tuple[str, ...] = (),
    batch_norm_variance: str = 'biased',
) -> SplitModel:
    """The split model `name` for K classes and images (H, W, C).

    `dtype` is the type of the computation, 'float32' or 'bfloat16'; parameters are float32.
    `convolution` 'auto' is 'direct' on a CPU and 'native' elsewhere; see `semisfl_jax.models.lowerings`.
    `axes` as in `split.cut`. `batch_norm_variance`: 'biased' or 'unbiased', the kind of BatchNorm's running variance.

    Raises:
      UserError: an unknown name, a cut out of range, or images too small for the model.
    """
    if name not in ARCHITECTURES:
        raise UserError(f"model.name='{name}' is unknown; {use_one_of(name, ARCHITECTURES)}")
    if convolution == 'auto':
        convolution = 'direct' if jax.default_backend() == 'cpu' else 'native'
    compute = Compute(dtype, convolution, batch_norm_variance)
    architecture = ARCHITECTURES[name](num_classes, compute)
    return cut(architecture, image_shape, split_index, projection, projection_dim, compute, axes)


__all__ = [
    'ARCHITECTURES',
    'BATCH_NORM_VARIANCES',
    'CONVOLUTIONS',
    'NAMES',
    'PROJECTIONS',
    'Compute',
    'SplitModel',
    'build',
    'cut',
]
