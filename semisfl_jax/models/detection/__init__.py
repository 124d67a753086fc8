"""Parts of detectors with fixed shapes, each usable alone: boxes, anchors, RoIAlign, matching, losses and heads.

Boxes are [..., 4] float32: left, top, right and bottom edge, in pixels from the upper left corner of the image. What is
missing to a full number is told by a mask, so that no shape depends on the data. Equal to torchvision's, within
rounding, where this says nothing else.
"""
