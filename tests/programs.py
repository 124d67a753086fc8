"""What decides the numbers of a run, without compiling or running it: the programs, and what goes into them.

A program is a function of the hyper-parameters that it reads while it is traced, of the views that it calls, of the
model, and of the shapes of its arguments; its numbers follow from those arguments that its results depend on. So where
none of that differs between two configurations, neither do their runs (`Made.differs`). Where some of it does, the
texts of the programs tell (`Made.texts`): a hyper-parameter may be read and not used.
"""

import contextlib
import dataclasses
import functools
import hashlib
import re

import jax
import numpy as np
from jax.extend import core
from jax.interpreters import partial_eval

from semisfl_jax import algorithms, augment
from semisfl_jax import config as config_lib
from semisfl_jax import data as data_lib
from semisfl_jax.training import experiment, inputs, memory
from tests import sharing

ROUNDS = 2  # whose cohorts are compared
VIEWS = ('weak', 'strong', 'supervised', 'together')


@contextlib.contextmanager
def recorded(patch):
    """Within it, `Made` knows which hyper-parameters and views programs read; data sets are loaded once."""
    build, replace, views = algorithms.build, dataclasses.replace, experiment.views

    def build_recorded(name, model, views, hparams, axis):
        return build(name, model, READS.of_views(views), READS.of_record(hparams), axis)

    def replace_unrecorded(record, /, **changes):
        with READS.paused():
            return replace(record, **changes)

    def quick_views(options, dataset):
        """Traced once for a shape, however many programs call them."""
        made = views(options, dataset)
        weak, strong = jax.jit(made.weak), jax.jit(made.strong)
        supervised = strong if options.supervised == 'strong' else weak
        return made._replace(weak=weak, strong=strong, supervised=supervised, together=jax.jit(made.together))

    with patch.context() as context:
        context.setattr(algorithms, 'build', build_recorded)
        context.setattr(memory, 'check', lambda config, shares_of: None)  # traces programs, too
        context.setattr(dataclasses, 'replace', replace_unrecorded)
        context.setattr(experiment, 'views', sharing.once(quick_views, sharing.of_views))
        context.setattr(data_lib, 'load', sharing.once(data_lib.load, lambda options: options.to_json()))
        yield


class Reads:
    """The names of what has been read."""

    def __init__(self):
        self.names, self.on = set(), True

    def note(self, name):
        if self.on:
            self.names.add(name)

    @contextlib.contextmanager
    def paused(self):
        before, self.on = self.on, False
        try:
            yield
        finally:
            self.on = before

    def of_views(self, views):
        def called(name):
            def view(*arguments):
                self.note(name)
                return getattr(views, name)(*arguments)

            return view

        return views._replace(**{name: called(name) for name in VIEWS})

    def of_record(self, record, prefix=''):
        """A frozen dataclass, and those in it, of a class that notes the fields that are read."""
        kind, names = recording(type(record)), {field.name for field in dataclasses.fields(record)}
        made = object.__new__(kind)
        for name in names:
            value = getattr(record, name)
            inner = dataclasses.is_dataclass(value) and not isinstance(value, type)
            object.__setattr__(made, name, self.of_record(value, f'{prefix}{name}.') if inner else value)
        object.__setattr__(made, '_prefix', prefix)
        return made


READS = Reads()


@functools.cache
def recording(kind):
    names = {field.name for field in dataclasses.fields(kind)}

    class Recording(kind):
        def __getattribute__(self, name):
            if name in names:
                # a copy by `dataclasses.replace` has no prefix, and is of the outermost record
                READS.note(object.__getattribute__(self, '__dict__').get('_prefix', '') + name)
            return super().__getattribute__(name)

        __eq__, __hash__ = object.__eq__, object.__hash__

    return Recording


class Made:
    """The programs of a configuration (checked), as far as they are asked for."""

    def __init__(self, config):
        READS.names = set()
        self.built = experiment.build(config_lib.resolve(config))
        self.read = READS.names  # at first by what builds the programs
        stream = inputs.inputs(self.built, 0)
        self.rounds = [next(stream)[:2] for _ in range(ROUNDS)]

    @functools.cached_property
    def programs(self):
        """(Texts of round, first state and outputs; which leaves of its arguments the round uses; its state)."""
        built, algorithm = self.built, self.built.algorithm
        images = jax.ShapeDtypeStruct((2, *built.dataset.test_images.shape[1:]), np.uint8)
        READS.names = self.read
        state = jax.eval_shape(algorithm.init, built.key)
        round_, used = text_of(algorithm.round, *self.arguments(0, state))
        texts = round_, text_of(algorithm.init, built.key)[0], text_of(algorithm.predict, state, images)[0]
        READS.names = set()
        return texts, used, state

    @property
    def texts(self):
        return self.programs[0]

    def arguments(self, index, state):
        return (self.built.key, state, *self.rounds[index], np.int32(2))

    def used_inputs(self, used, state):
        """Digests of the arguments that the results of a round depend on, but for the state."""
        values = []
        for index in range(ROUNDS):
            leaves = jax.tree.leaves(self.arguments(index, state))
            if len(leaves) != len(used):
                return None
            values += [digest(x) for x, is_used in zip(leaves, used, strict=True) if is_used and is_array(x)]
        return values

    @property
    def controller(self):
        """What decides K_s in the course of a run."""
        rule = self.built.frequency.rule
        return self.built.config.k_s, rule, None if rule == 'fixed' else self.built.frequency

    def differs(self, other):
        """Why `other` may train to other numbers: the first of what this one reads that differs; '' if nothing does."""
        _, used, state = self.programs
        read = self.read
        mine, theirs = (flat_record(made.built.hparams) for made in (self, other))
        for name in sorted(read & mine.keys()):
            if mine[name] != theirs[name]:
                return name
        for name in VIEWS:
            if name in read and self.view(name) != other.view(name):
                return f'the {name} view'
        if self.built.model != other.built.model:
            return 'the model'
        if self.used_inputs(used, state) != other.used_inputs(used, state):
            return 'the inputs'
        if used[-1] and self.controller != other.controller:
            return 'the controller'
        return '' if np.array_equal(self.built.dataset.test_images, other.built.dataset.test_images) else 'test images'

    def same(self, other):
        """Whether both train to the same numbers: as `differs`, with the programs in place of what they read."""
        _, used, state = self.programs
        return (
            self.texts == other.texts
            and self.used_inputs(used, state) == other.used_inputs(used, state)
            and (not used[-1] or self.controller == other.controller)
            and np.array_equal(self.built.dataset.test_images, other.built.dataset.test_images)
        )

    def view(self, name):
        """The text of a view."""
        options, images = self.built.config.augment, self.built.dataset.train_images
        kind = options.supervised if name == 'supervised' else name
        settings = augment.AugmentOptions(**{field: options[field] for field in augment.AugmentOptions._fields})
        return view_text(kind, settings, (2, *images.shape[1:]))


@functools.cache
def view_text(kind, settings, shape):
    key, images = jax.random.key(0), jax.ShapeDtypeStruct(shape, np.uint8)
    targets = ({'depth': jax.ShapeDtypeStruct(shape[:-1], np.uint8)},) if kind == 'together' else ()
    return text_of(functools.partial(getattr(augment, kind), options=settings), key, images, *targets)[0]


def flat_record(record, prefix=''):
    """{dotted name: value} of a frozen dataclass."""
    flat = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        inner = dataclasses.is_dataclass(value)
        flat |= flat_record(value, f'{prefix}{field.name}.') if inner else {prefix + field.name: value}
    return flat


def text_of(function, *arguments):
    """The digest of a program without what its results do not depend on, and whether they do on each leaf of its
    arguments."""
    closed = jax.make_jaxpr(function)(*arguments)
    needed, used = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    text = re.sub('0x[0-9a-f]+', '', str(needed))
    constants = [digest(value) for value in (*closed.consts, *constants_in(needed))]
    return hashlib.sha256(' '.join([text, *constants]).encode()).hexdigest(), used


def constants_in(jaxpr):
    """The arrays that programs in a program hold, which its text leaves out."""
    for equation in jaxpr.eqns:
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=is_program):
            if isinstance(value, core.ClosedJaxpr):
                yield from value.consts
            if is_program(value):
                yield from constants_in(getattr(value, 'jaxpr', value))


def is_program(value):
    return isinstance(value, core.ClosedJaxpr | core.Jaxpr)


def is_array(value):
    return isinstance(value, jax.Array | np.ndarray)


def digest(array):
    if is_array(array) and jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    array = np.asarray(array)
    return hashlib.sha256(f'{array.shape} {array.dtype} '.encode() + array.tobytes()).hexdigest()
