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

import jax  # noqa: E402
import pytest  # noqa: E402


@pytest.fixture(scope='session', autouse=True)
def compilation_cache(tmp_path_factory):
    """Compiles a program once per session, however many runs need it."""
    folder = str(tmp_path_factory.mktemp('compilation_cache'))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('JAX_COMPILATION_CACHE_DIR', folder)
        jax.config.update('jax_compilation_cache_dir', folder)
        yield
