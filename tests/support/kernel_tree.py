"""A small tree of kernels and their tests, and a run to record of it."""

from pathlib import Path

from tests.gpu_record import Run

# Two operations; one includes a header of the other.
FILES = {
    "ffi/include/fdjax/gpu.h": '#include "xla/ffi/api/ffi.h"',
    "ffi/include/fdjax/unused.h": "",
    "ffi/shared/bits.cuh": "",
    "ffi/shared/slots.cuh": '#  include <fdjax/gpu.h>\n#include "bits.cuh"',
    "ffi/sum/gpu_handler.cc": '#include "sum/kernel.cuh"\n#include "sum/kernel.cuh"',
    "ffi/sum/kernel.cuh": '#include "shared/slots.cuh"',
    "ffi/sum/notes.txt": "",
    "ffi/sum_flat/gpu_handler.cc": '#include "../sum/kernel.cuh"\n',
    "fdjax/kernels/sum/__init__.py": "",
    "fdjax/kernels/sum/pallas/kernel.py": "",
    "fdjax/kernels/sum_flat/__init__.py": "",
    "tests/kernels/test_sum.py": """
import pytest
@pytest.mark.gpu
@pytest.mark.parametrize("size", [1, 2, 3])
def test_cuda(size):
    if size == 3: pytest.skip("too large")
def test_cpu(): pass
""",
    "tests/kernels/test_sum_more.py": """
import pytest
@pytest.mark.gpu
def test_again(): pass
""",
    "tests/kernels/test_sum_plan.py": "def test_cpu(): pass",
    "tests/kernels/test_sum_flat.py": """
import os, pytest
@pytest.mark.gpu
def test_flat(): pass
@pytest.mark.gpu
def test_broken(): assert "BROKEN" not in os.environ
""",
}
RUN: Run = {
    "result": "passed",
    "passed": 5,
    "failed": 0,
    "skipped": 1,
    "device": "NVIDIA H200",
    "jax": "0.11.2",
    "commit": "abc1234",
    "date": "2026-11-23",
}


def make(folder: Path) -> Path:
    """Writes the files; gives the folder."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
