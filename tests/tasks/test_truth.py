"""Annotations as bytes."""

import numpy as np

from semisfl_jax.tasks import truth


def test_annotations_come_back():
    pictures = [[{'category_id': 3, 'bbox': [0, 1.5, 2, 3]}, {'category_id': 1}], [], [{'name': 'ä'}]]
    texts = truth.padded([truth.encode(picture) for picture in pictures])
    assert texts.dtype == np.uint8
    assert [truth.decode(text) for text in texts] == pictures
    longer = truth.padded([truth.encode(picture) for picture in pictures], 100)
    assert longer.shape == (3, 100)
    assert [truth.decode(text) for text in longer] == pictures
    assert truth.decode(np.zeros(5, np.uint8)) == [], 'a picture without annotations'
