"""How tests compile: without optimisation, and once for a session, shared with the processes they start."""

import os

# Before JAX reads them. Most of the time of the tests goes into compiling, most of that into code faster than a toy
# needs. The numbers are the same but for rounding. Where the last digit matters between two programs (trials against
# single runs), and where devices or hosts are at work, tests run in processes of their own, compiled as for a user.
UNOPTIMISED = (
    '--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true '
    '--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters'
)
os.environ.setdefault('XLA_FLAGS', UNOPTIMISED)

import gc  # noqa: E402

import jax  # noqa: E402
import pytest  # noqa: E402

KEPT_FROM_SECONDS = '0.1'  # programs that compile faster are not worth a file


@pytest.fixture(scope='session', autouse=True)
def compilation_cache(tmp_path_factory):
    """Compiles a program once per session, however many runs need it."""
    folder = str(tmp_path_factory.mktemp('compilation_cache'))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('JAX_COMPILATION_CACHE_DIR', folder)
        patch.setenv('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', KEPT_FROM_SECONDS)
        jax.config.update('jax_compilation_cache_dir', folder)
        jax.config.update('jax_persistent_cache_min_compile_time_secs', float(KEPT_FROM_SECONDS))
        yield


@pytest.fixture(scope='module', autouse=True)
def forgotten_programs():
    """Drops the programs of a file after its last test: held until the end, they fill gigabytes."""
    yield
    jax.clear_caches()
    gc.collect()
