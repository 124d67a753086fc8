"""Dense models that a user registers: what their functions return."""

from collections.abc import Callable

import flax.linen as nn
import pytest

from semisfl_jax import models
from semisfl_jax.core.errors import UserError


class Odd(nn.Module):
    """An encoder or a decoder of a user: what `function` makes of its input."""

    function: Callable

    @nn.compact
    def __call__(self, x, train):
        return self.function(x)


def fail(x):
    raise ValueError('a slip of the user')


ENCODER, DECODER = Odd(lambda x: (x, x[:, ::2])), Odd(lambda maps: maps[0])


@pytest.mark.parametrize(
    ('made', 'error', 'message'),
    [
        ((Odd(lambda x: x), DECODER), UserError, r'the encoder .* float32 \[2, 9, 8, 3\]; return a tuple of maps'),
        ((Odd(lambda x: (x, x[0])), DECODER), UserError, r'the encoder .* returns float32 \[9, 8, 3\]'),
        ((ENCODER, Odd(lambda maps: maps)), UserError, r'the decoder .* returns a tuple .* \[2, \?, \?, 3\]'),
        ((ENCODER, Odd(lambda maps: maps[1][..., :2])), UserError, r'the decoder .* returns float32 \[2, 5, 8, 2\]'),
        ((Odd(fail), DECODER), ValueError, 'a slip of the user'),
        ((ENCODER, Odd(fail)), ValueError, 'a slip of the user'),
    ],
)
def test_a_model_of_a_user_returns_maps(monkeypatch, made, error, message):
    monkeypatch.setitem(models.DENSE_ARCHITECTURES, 'mine', lambda *_: (ENCODER, DECODER))
    assert models.build_dense('mine', 3, (9, 8, 3)).feature_size == 9 * 8 * 3 + 5 * 8 * 3
    monkeypatch.setitem(models.DENSE_ARCHITECTURES, 'mine', lambda *_: made)
    with pytest.raises(error, match=message):
        models.build_dense('mine', 3, (9, 8, 3))
