"""Fills Mask R-CNN and its encoder from a state dict of torchvision's `maskrcnn_resnet50_fpn`."""

import re

import flax

from semisfl_jax.core.types import Variables
from semisfl_jax.models import weights

# Paths of a decoder's parameters, and torchvision's names of modules
_NAMES = (
    (r'fpn/(inner|layer)_blocks_(\d)', r'backbone.fpn.\1_blocks.\2.0'),
    (r'rpn/conv', 'rpn.head.conv.0.0'),
    (r'rpn/', 'rpn.head.'),
    (r'box/(fc\d)/dense', r'roi_heads.box_head.\1'),
    (r'box/(\w+)/dense', r'roi_heads.box_predictor.\1'),
    (r'mask/fcn_(\d)', r'roi_heads.mask_head.\1.0'),
    (r'mask/', 'roi_heads.mask_predictor.'),
)
# Names of torchvision's older state dicts, which its published weights have, and those of today
_OLDER = (
    (r'(_blocks\.\d)(\.\w+)$', r'\1.0\2'),
    (r'(rpn\.head\.conv)(\.\w+)$', r'\1.0.0\2'),
    (r'mask_fcn(\d)', lambda match: f'{int(match[1]) - 1}.0'),
)


def load(
    path: str, encoder: Variables, decoder: Variables, epsilon: float = 1e-5, body: str = 'backbone.body.'
) -> tuple[Variables, Variables]:
    """Returns the variables of a ResNet and of `MaskRCNN` with all values replaced by those of a state dict.

    Args:
      path: a file as in `models.load_encoder`.
      encoder: {'params': …, 'batch_stats': …} of `models.resnet.ResNet`.
      decoder: {'params': …} of `MaskRCNN`.
      epsilon: what the file's BatchNorm adds to variances, which are changed by the difference to this package's 1e-5:
        0 for the weights `COCO_V1` that torchvision publishes, 1e-5 for a model that was built without them.
      body: prefix of the encoder's names.

    Raises:
      UserError: the file cannot be read, or its names and shapes are not exactly those of the model.
    """
    arrays = {}
    for name, array in weights.read(path).items():
        for pattern, new in _OLDER:
            name = re.sub(pattern, new, name)
        arrays[name] = array
    of_encoder = {name.removeprefix(body): array for name, array in arrays.items() if name.startswith(body)}
    of_decoder = {name: array for name, array in arrays.items() if not name.startswith(body)}
    encoder = weights.fill(path, encoder, of_encoder, weights.torch_name)
    shift = epsilon - 1e-5
    encoder = flax.traverse_util.path_aware_map(lambda parts, x: x + shift if parts[-1] == 'var' else x, encoder)
    return encoder, weights.fill(path, decoder, of_decoder, torch_name)


def torch_name(parts: tuple[str, ...]) -> str:
    """Returns the name of a parameter of `MaskRCNN` in torchvision's state dict.

    ('params', 'box', 'fc6', 'dense', 'kernel') is 'roi_heads.box_head.fc6.weight'.
    """
    path, last = '/'.join(parts[1:-1]), 'weight' if parts[-1] == 'kernel' else parts[-1]
    pattern, new = next(row for row in _NAMES if re.match(row[0], path))
    return f'{re.sub(pattern, new, path)}.{last}'
