"""The cache of decoded images."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from semisfl_jax.base.errors import UserError
from semisfl_jax.data import cache, dataset, decode


class Counting:
    """A source of random images that counts how often it is decoded."""

    def __init__(self, key='toy-1.0.0-abc'):
        generator = np.random.default_rng(0)
        self.images = generator.integers(0, 256, (40, 6, 5, 3), dtype=np.uint8)
        self.labels = generator.integers(0, 10, 40)
        self.decoded = 0
        self.source = decode.Source('toy', key, 10, self.open)

    def open(self):
        return self.stream(slice(0, 30)), self.stream(slice(30, 40))

    def stream(self, rows):
        images, labels = self.images[rows], self.labels[rows].astype(np.int32)

        def chunks():
            self.decoded += 1
            for start in range(0, len(images), 7):
                yield images[start : start + 7], labels[start : start + 7]

        return decode.Stream(len(images), (6, 5, 3), chunks)

    def check(self, arrays, digest):
        np.testing.assert_array_equal(arrays['train_images'], self.images[:30])
        np.testing.assert_array_equal(arrays['test_images'], self.images[30:])
        np.testing.assert_array_equal(arrays['train_labels'], self.labels[:30])
        np.testing.assert_array_equal(arrays['test_labels'], self.labels[30:])
        assert arrays['train_labels'].dtype == np.int32
        assert digest == dataset.checksum('toy', arrays)


def test_a_cached_set_is_not_decoded_again(tmp_path):
    """Nor is what remains of a killed process in the way."""
    (tmp_path / 'deep/cache/.toy-1.0.0-abc/rest').mkdir(parents=True)
    toy, other = Counting(), Counting('toy-1.0.0-def')
    for made in (toy, toy, other):
        made.check(*cache.fetch(made.source, str(tmp_path / 'deep' / 'cache')))
        assert made.decoded == 2  # training and test split, once
    names = sorted(p.name for p in (tmp_path / 'deep' / 'cache').iterdir())
    assert names == ['.toy-1.0.0-abc.lock', '.toy-1.0.0-def.lock', 'toy-1.0.0-abc', 'toy-1.0.0-def']


def damage_byte(entry):
    content = bytearray((entry / 'train_images.npy').read_bytes())
    content[-5] ^= 1
    (entry / 'train_images.npy').write_bytes(content)


DAMAGE = {
    'cut short': lambda entry: (entry / 'test_images.npy').write_bytes((entry / 'test_images.npy').read_bytes()[:-9]),
    'a bit': damage_byte,
    'no meta': lambda entry: (entry / 'meta.json').unlink(),
    'other meta': lambda entry: (entry / 'meta.json').write_text('[1]'),
}


@pytest.mark.parametrize('how', DAMAGE)
def test_a_damaged_entry_is_rebuilt(tmp_path, how, caplog):
    toy = Counting()
    cache.fetch(toy.source, str(tmp_path))
    DAMAGE[how](tmp_path / 'toy-1.0.0-abc')
    with caplog.at_level('WARNING', logger='semisfl_jax'):
        toy.check(*cache.fetch(toy.source, str(tmp_path)))
    assert toy.decoded == 4
    assert 'damaged' in caplog.text
    toy.check(*cache.fetch(toy.source, str(tmp_path)))
    assert toy.decoded == 4


def test_a_cache_that_cannot_be_written_only_warns(tmp_path, caplog):
    (tmp_path / 'file').write_text('')
    toy = Counting()
    with caplog.at_level('WARNING', logger='semisfl_jax'):
        toy.check(*cache.fetch(toy.source, str(tmp_path / 'file' / 'cache')))
    assert 'not cached' in caplog.text


def test_a_failed_decoding_leaves_nothing_behind(tmp_path):
    toy = Counting()

    def broken():
        yield from [(toy.images[:7], toy.labels[:7])]
        raise UserError('unreadable')

    train, test = toy.open()
    source = toy.source._replace(open=lambda: (train, test._replace(chunks=broken)))
    with pytest.raises(UserError, match='unreadable'):
        cache.fetch(source, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ['.toy-1.0.0-abc.lock']


def test_processes_that_start_together_decode_once(tmp_path):
    toy = Counting()
    with ThreadPoolExecutor(3) as pool:
        for arrays, digest in pool.map(lambda _: cache.fetch(toy.source, str(tmp_path)), range(3)):
            toy.check(arrays, digest)
    assert toy.decoded == 2


def test_the_default_cache_follows_xdg(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    toy = Counting()
    cache.fetch(toy.source)
    assert (tmp_path / 'semisfl_jax' / 'toy-1.0.0-abc' / 'meta.json').exists()
    monkeypatch.delenv('XDG_CACHE_HOME')
    monkeypatch.setenv('HOME', str(tmp_path / 'home'))
    assert cache.default_dir() == tmp_path / 'home' / '.cache' / 'semisfl_jax'
    monkeypatch.delenv('HOME')
    monkeypatch.setattr(os, 'getuid', lambda: 54321)  # whom /etc/passwd does not have
    with pytest.raises(UserError, match='XDG_CACHE_HOME'):
        cache.default_dir()
