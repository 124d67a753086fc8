"""Weak and strong views on the device: uint8 in, uint8 out, inside the jitted step, equal to Pillow's."""

from semisfl_jax.augment.views import VARIANTS, AugmentOptions, check, strong, weak

__all__ = ['VARIANTS', 'AugmentOptions', 'check', 'strong', 'weak']
