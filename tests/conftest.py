"""How tests compile: without optimization, and once, for all workers, the processes they start and later sessions; and
how tests are dealt to the workers of `pytest -n`."""

import ctypes
import gc
import os
import shutil
from pathlib import Path

# Before JAX reads them. Most of the time of the tests goes into compiling, most of that into code faster than a toy
# needs. The numbers are the same but for rounding. Where the last digit matters between two programs (trials against
# single runs), and where devices or hosts are at work, tests run in processes of their own.
UNOPTIMIZED = (
    '--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true '
    '--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters --xla_cpu_parallel_codegen_split_count=1'
)
os.environ.setdefault('XLA_FLAGS', UNOPTIMIZED)

import jax  # noqa: E402
import pytest  # noqa: E402

pytest.register_assert_rewrite('tests.helpers')  # they compare, too

from semisfl_jax.base import machine  # noqa: E402
from tests.helpers import sharing  # noqa: E402

# Programs are dropped after a test where the process holds more bytes than the first number, and more than the second
# beside what dropping does not give back.
FULL, GROWTH = 1100 * 2**20, 400 * 2**20
KEPT_FROM_SECONDS = 0.0  # the small programs of step-by-step twins are shared between files and workers, too
KEPT_BYTES = 2**30  # of programs, from earlier sessions
# Files that begin first
LONGEST = (
    'test_as_for_users',
    'end_to_end/test_devices',
    'end_to_end/test_matrix',
    'end_to_end/test_keys',
    'base/test_hosts',
    'lab/studies/test_engine',
    'end_to_end/test_train',
    'benchmarks/test_torch_reference',
)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """A worker of `pytest -n` takes a whole file: what its tests compile and run once is not done again elsewhere."""
    if getattr(config.option, 'numprocesses', None) and config.option.dist == 'no':
        config.option.dist, config.option.loadscopereorder = 'loadfile', False


def pytest_configure(config):
    """The programs of many earlier sessions go."""
    if hasattr(config, 'cache') and not hasattr(config, 'workerinput'):
        folder = config.cache.mkdir('programs')
        if sum(file.stat().st_size for file in folder.iterdir()) > KEPT_BYTES:
            shutil.rmtree(folder)


def pytest_collection_modifyitems(config, items):
    tests = Path(__file__).parent
    files = list(dict.fromkeys([*(tests / f'{name}.py' for name in LONGEST), *(item.path for item in items)]))
    items.sort(key=lambda item: files.index(item.path))
    if os.environ['XLA_FLAGS'] == UNOPTIMIZED:
        for item in items:
            if item.get_closest_marker('as_for_users'):
                item.add_marker(pytest.mark.skip(reason='tests/test_as_for_users.py runs it'))


@pytest.fixture(scope='session', autouse=True)
def compilation_cache(pytestconfig, tmp_path_factory):
    """Compiles a program once, however many runs, workers and sessions need it, and traces it once per file."""
    if not (folder := os.environ.get('TESTS_CACHE')):
        cache = getattr(pytestconfig, 'cache', None)  # none with -p no:cacheprovider
        folder = str(cache.mkdir('programs') if cache else tmp_path_factory.getbasetemp() / 'programs')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('JAX_COMPILATION_CACHE_DIR', folder)
        patch.setenv('TESTS_CACHE', folder)  # of tests in processes of their own
        jax.config.update('jax_compilation_cache_dir', folder)
        jax.config.update('jax_persistent_cache_min_compile_time_secs', KEPT_FROM_SECONDS)
        patch.setattr(machine, 'KEPT_FROM_SECONDS', KEPT_FROM_SECONDS)
        jax.devices()  # so that no test with several devices splits the CPU of those that follow
        sharing.share(patch)
        yield


def memory():
    """Bytes in memory of this process; 0 where the system does not say so in a file."""
    pages = Path('/proc/self/statm')
    return int(pages.read_text().split()[1]) * os.sysconf('SC_PAGE_SIZE') if pages.exists() else 0


baseline = {'bytes': 0}  # in use when programs were last dropped


def forget():
    """Drops all programs that were compiled, and gives their memory back to the system."""
    sharing.forget()
    jax.clear_caches()
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), 'malloc_trim', None):  # glibc keeps what is freed otherwise
        trim(0)
    baseline['bytes'] = memory()


@pytest.fixture(scope='session')
def reference(tmp_path_factory):
    """A tiny run of four rounds that nothing disturbed. No test writes to it."""
    from tests.helpers import runs

    folder = tmp_path_factory.mktemp('reference') / 'run'
    assert runs.run(folder) == 0
    return folder


@pytest.fixture(scope='module', autouse=True)
def programs_of_a_file():
    """Held until the end, programs fill gigabytes."""
    yield
    forget()


@pytest.fixture(autouse=True)
def programs_that_fit():
    yield
    if memory() > max(FULL, baseline['bytes'] + GROWTH):
        forget()
