"""Models by name: images that are too small, names and keys that are not possible."""

import pytest

from semisfl_jax import models
from semisfl_jax.base.errors import UserError
from semisfl_jax.models import lowerings


@pytest.mark.parametrize('lowering', lowerings.LOWERINGS)
@pytest.mark.parametrize(
    ('name', 'side', 'cut'),
    [('cnn', 8, None), ('alexnet', 4, 1), ('resnet9', 4, None), ('cnn13', 11, 3), ('cnn13', 8, 1)],
)
def test_images_too_small_for_either_part(name, side, cut, lowering):
    """12 pixels are the fewest of CNN13: 12, 6, 3, and 1 after the convolution without padding."""
    with pytest.raises(UserError, match=name):
        models.build(name, 10, (side, side, 3), cut, convolution=lowering)
    if name == 'cnn13':
        assert models.build(name, 10, (12, 12, 3), cut, convolution=lowering).feature_size > 0


@pytest.mark.parametrize(
    ('build', 'key'),
    [
        (lambda: models.build('scene_net', 10, (48, 48, 3)), 'scene_net'),
        (lambda: models.build_dense('cnn', 3, (48, 48, 3)), 'cnn'),
        (lambda: models.build_dense('scene_net', 3, (7, 48, 3)), 'scene_net'),
        (lambda: models.build_dense('deeplabv3_resnet18', 3, (48, 48, 3), output_stride=4), 'output_stride=4'),
        (lambda: models.build_dense('scene_net', 3, (16, 16, 3)).project({}, None), 'projection'),
    ],
)
def test_what_no_model_can_be_is_named_by_its_key(build, key):
    with pytest.raises(UserError, match=key):
        build()
