# ruff: noqa: F401
"""Weak and strong views on the device, inside the jitted step: uint8 in, uint8 out, identical to Pillow's results."""

from semisfl_jax.augment.views import STILL, AugmentOptions, check, check_images, strong, together, weak
