"""One compilation cache for all tests of a session, shared with the processes they start."""

import jax
import pytest


@pytest.fixture(scope='session', autouse=True)
def compilation_cache(tmp_path_factory):
    """Compiles a program once per session, however many runs need it."""
    folder = str(tmp_path_factory.mktemp('compilation_cache'))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('JAX_COMPILATION_CACHE_DIR', folder)
        jax.config.update('jax_compilation_cache_dir', folder)
        yield
