"""What holds for all tests: the CPU by default, and no silent promotion."""

import gc
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# JAX reads it when it is imported; nothing above and at the top may do that.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests compile much and compute little: a third of the time of the engine's tests less.
# Not for what compiles for a GPU from here, whose programs cannot be read from a disk.
ON_A_CPU = os.environ["JAX_PLATFORMS"] == "cpu" and not os.environ.get(
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"
)
if ON_A_CPU:
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
    )

# What Linux counts of a process, up to 65,530 (vm.max_map_count).
MEMORY_MAPS = Path("/proc/self/maps")

# Files that take minutes, or many seconds for few tests. xdist hands out what has many
# tests first, so that at the end one worker would have these, and the others nothing.
LONG_FILES = {
    "test_beam_families.py",
    "test_beams.py",
    "test_beams_together.py",
    "test_docs.py",
    "test_ends.py",
    "test_folders.py",
    "test_grammars.py",
    "test_lent_programs.py",
    "test_llm_searches.py",
    "test_memory_soak.py",
    "test_requests.py",
    "test_room.py",
    "test_serve_apart.py",
}

if TYPE_CHECKING:
    from fdjax import LLM
    from fdjax.engine.engine import Engine


def pytest_configure(config: pytest.Config) -> None:
    import jax

    from tests import gpu_record
    from tests.support.gpu_run import GpuRun

    jax.config.update("jax_numpy_dtype_promotion", "strict")
    _let_examples_take_long()
    if ON_A_CPU and not jax.config.jax_compilation_cache_dir:
        _keep_programs(config)
    if hasattr(config.option, "loadscopereorder"):  # xdist is there
        config.option.loadscopereorder = False  # the order is LONG_FILES'
    # A worker of xdist sees a part of the tests only, and the process above it none.
    if (path := gpu_record.destination()) and not hasattr(config, "workerinput"):
        share = gpu_record.share_of_tests()
        config.pluginmanager.register(GpuRun(path, share=share))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first, so that no worker waits for it at the end."""
    items.sort(key=lambda item: item.path.name not in LONG_FILES)


def _let_examples_take_long() -> None:
    """How long one of hypothesis takes says how busy the machine is."""
    if importlib.util.find_spec("hypothesis") is None:  # beside other stacks
        return
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "tests", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("tests")


def _keep_programs(config: pytest.Config) -> None:
    """A program is compiled once: engines of one shape are made often.

    In this process, in the workers, and in those that tests start.
    """
    import jax

    folder = tempfile.TemporaryDirectory(prefix="fdjax-tests-")
    config.add_cleanup(folder.cleanup)
    options = {
        "jax_compilation_cache_dir": folder.name,
        # With a limit JAX locks the folder: it would read what another process writes.
        "jax_compilation_cache_max_size": 2**34,
        # Others are compiled as fast as they are read.
        "jax_persistent_cache_min_compile_time_secs": 0.1,
    }
    for name, value in options.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)


def pytest_collection_finish() -> None:
    """What is there by now stays: the collector need not look at it again and again.

    Nor so often: tracing makes many objects and few cycles. With Python's own threshold
    of 700 a twentieth of the engine's tests was collecting.
    """
    from fdjax.garbage import NEW_OBJECTS

    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what is marked for a machine other than this one."""
    import jax

    from fdjax import device

    backend = jax.default_backend()
    if item.get_closest_marker("gpu") and backend != "gpu":
        pytest.skip(f"needs an NVIDIA GPU, and JAX runs on the {backend}")
    if item.get_closest_marker("cpu") and backend != "cpu":
        pytest.skip(f"is about a CPU, and JAX runs on the {backend}")
    if item.get_closest_marker("hopper") and not device.is_hopper():
        pytest.skip(f"needs compute capability 9.0, and this is {device.kind()}")
    if item.get_closest_marker("browser"):
        if importlib.util.find_spec("playwright") is None:
            pytest.skip("needs playwright: the group browser")
        if shutil.which("chromium") is None:
            pytest.skip("needs chromium on the path")


def _num_maps() -> int:
    return MEMORY_MAPS.read_bytes().count(b"\n") if MEMORY_MAPS.exists() else 0


@pytest.fixture(scope="module", autouse=True)
def _maps_for_programs() -> Iterator[None]:
    """Programs of earlier modules go before a process has too many.

    On a CPU each has several maps of its memory: the engine's tests alone leave 29,000
    behind, as engines wait for a collector that seldom looks. Where there are no more,
    XLA ends in a segmentation fault, whatever it does just then.
    """
    yield
    if _num_maps() < 10_000:
        return
    gc.collect()
    if _num_maps() > 30_000:
        import jax

        jax.clear_caches()


@pytest.fixture(scope="session")
def llm() -> "LLM":
    """The shipped model, in float32, for up to 4 sequences of 128 tokens."""
    from fdjax import LLM

    return LLM(max_model_len=128, max_num_seqs=4)


@pytest.fixture(scope="session")
def engine() -> "Engine":
    """A random Llama of 3 narrow layers, for up to 4 sequences of 32 tokens."""
    from tests.support.engines import tiny_engine

    return tiny_engine()
