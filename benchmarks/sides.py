"""The two sides of the comparison, each for its own process: neither imports the other."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import statistics

from benchmarks import arithmetic
from benchmarks.processes import Remote, Side

NUM_LABELED, PER_CLIENT = 1000, 500
MATRIX = {'cpu': 2048, 'gpu': 8192}  # side of the matrices whose product measures the machine's peak rate
PRODUCTS = 8  # per measurement
TRIALS = 2  # of each mode of the PyTorch side, after a warm-up run


@dataclasses.dataclass(frozen=True)
class Case:
    """The settings of one measurement."""

    model: str
    augment: bool
    clients: int
    batch_size: int
    k_s: int
    k_u: int
    precision: str = 'tf32'  # of both sides, as config.precision
    convolution: str = 'auto'  # of the JAX side, as config.model.convolution
    client_map: str = 'auto'  # of the JAX side, as config.federation.client_map
    client_chunk: int = 0  # of the JAX side, as config.federation.client_chunk
    mode: str = ''  # of the PyTorch side

    def images(self, task: str) -> int:
        """Images that the student sees in one task."""
        clients = self.k_u * self.clients * self.batch_size
        return clients + (self.k_s * self.batch_size if task == 'round' else 0)

    def flops(self, task: str) -> int:
        """Operations of one task, from `arithmetic`."""
        server = self.k_s * self.batch_size if task == 'round' else 0
        clients = self.images('iteration')
        return clients * arithmetic.cross_entity(self.model) + server * arithmetic.supervised(self.model)


def jax_side(case: Case) -> Side:
    """This project's side."""
    os.environ.setdefault('XLA_PYTHON_CLIENT_MEM_FRACTION', '0.45')  # two processes share the GPU
    import jax
    import jax.numpy as jnp

    from benchmarks import programs
    from semisfl_jax import core
    from semisfl_jax.base import machine
    from semisfl_jax.core.hparams import learning_rate
    from semisfl_jax.training import experiment as experiment_lib
    from semisfl_jax.training.driver import Driver

    programs.first_start()
    config = programs.for_case(programs.CONFIGURATIONS[case.model].get_config(), case)
    experiment = experiment_lib.build(config)
    hparams, model = experiment.hparams, experiment.model
    views = experiment_lib.views(config.augment, experiment.dataset)
    phase = core.build_cross_entity(model, views, hparams, core.clients.client_axis(case.client_chunk, case.client_map))
    inputs = next(Driver([experiment]).inputs(0))[:2]

    def cross_entity(key, state, federation, cohort):
        return phase(key, state, federation, cohort, learning_rate(hparams, state.round))

    compile_seconds = {}

    def prepare(name, function, *more):
        state = jax.jit(experiment.algorithm.init)(experiment.key)
        program, compile_seconds[name] = programs.compiled(function, config, experiment.key, state, *inputs, *more)

        def task():
            nonlocal state
            state, metrics = program(experiment.key, state, *inputs, *more)
            jax.block_until_ready(state)
            return float(metrics['loss_unlabeled'])

        return task

    side = MATRIX['cpu' if jax.default_backend() == 'cpu' else 'gpu']
    number = jnp.bfloat16 if case.precision == 'bfloat16' else jnp.float32
    matrices = jnp.full((2, side, side), 1 / side, number)
    product = machine.jit(jnp.matmul, config.precision)

    def matmul():
        """Computes `PRODUCTS` products, each depending on the previous one; all entries stay 1 / side."""
        left = matrices[0]
        for _ in range(PRODUCTS):
            left = product(left, matrices[1])
        return float(left[0, 0])

    tasks = {
        'iteration': prepare('iteration', cross_entity),
        'round': prepare('round', experiment.algorithm.round, jnp.int32(case.k_s)),
        'matmul': matmul,
    }
    facts = {
        **programs.facts(),
        'compile_s': compile_seconds,
        'matmul_flops': 2 * side**3 * PRODUCTS,
    }
    return Side(tasks, facts, programs.device_memory)


def torch_side(case: Case) -> Side:
    """The PyTorch reference, in the mode `case.mode`."""
    import torch

    gpu, rounds = torch.cuda.is_available(), _torch_rounds(case, case.mode)
    facts = {
        'versions': {name: importlib.metadata.version(name) for name in ('torch', 'pillow')},
        'device': f'gpu ({torch.cuda.get_device_name()})' if gpu else 'cpu',
    }
    tasks = {'iteration': lambda: rounds.run(supervised=False), 'round': rounds.run}
    return Side(tasks, facts, lambda: torch.cuda.max_memory_allocated() if gpu else None)


def trial_side(case: Case) -> Side:
    """One iteration of the PyTorch reference in each of its modes, as tasks named by the mode."""
    from benchmarks.torch_reference import MODES

    short = dataclasses.replace(case, k_u=1, augment=False)
    rounds = {mode: _torch_rounds(short, mode) for mode in MODES}
    return Side(
        {
            mode: lambda rounds_of_mode=rounds_of_mode: rounds_of_mode.run(supervised=False)
            for mode, rounds_of_mode in rounds.items()
        },
        {'modes': MODES},
        lambda: None,
    )


def _torch_rounds(case: Case, mode: str):
    """Rounds of the PyTorch reference on noise images, which take Pillow as long as any others."""
    import numpy as np
    import torch

    from benchmarks.torch_reference import Options, Rounds

    torch.set_float32_matmul_precision('highest' if case.precision == 'float32' else 'high')
    torch.backends.cudnn.allow_tf32 = case.precision != 'float32'
    torch.backends.cudnn.benchmark = True
    generator = np.random.default_rng(0)
    count = NUM_LABELED + PER_CLIENT * case.clients
    shape = (8, 8, 1) if case.model == 'small_cnn' else (32, 32, 3)
    images = generator.integers(0, 256, (count, *shape), np.uint8)
    options = Options(
        model=case.model,
        clients=case.clients,
        k_s=case.k_s,
        k_u=case.k_u,
        batch_size=case.batch_size,
        server_batch_size=case.batch_size,
        augment=case.augment,
        bfloat16=case.precision == 'bfloat16',
        supervised_views='weak' if case.model == 'cnn' else 'strong',
    )
    return Rounds(options, images, generator.integers(0, 10, count), NUM_LABELED, mode)


def fastest_mode(case: Case) -> tuple[str, dict[str, list[float]]]:
    """The fastest mode of the PyTorch side, and the seconds per iteration of all modes."""
    with Remote(trial_side, case) as remote:
        seconds = {mode: [remote.time(mode) for _ in range(1 + TRIALS)][1:] for mode in remote.facts['modes']}
    return min(seconds, key=lambda mode: statistics.median(seconds[mode])), seconds


SIDES = {'jax': jax_side, 'torch': torch_side, 'trial': trial_side}
