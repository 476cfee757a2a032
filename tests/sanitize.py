"""compute-sanitizer over the CUDA kernels' tests: `python -m tests.sanitize`.

Every buffer is an allocation of its own (XLA's pool would hide reads past an end), XLA
captures no graphs (the tools do not survive its), and only our kernels are watched, in
this process alone: with those that XLA starts (ptxas) the tools end by a signal. What a
tool reports fails the run. The largest shapes are left out: they take hours.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

LARGE = "bench or beyond or llama3_8b_head or llama3_8b_down or two_runs"
# By tool, which tests. racecheck does not know the barrier of a cluster: where a row's
# tokens are split over blocks, it takes what one block sends another for a race with
# that block's earlier copies. The cases here have one split: nothing is sent.
TOOLS = {
    "memcheck": f"not ({LARGE})",
    "racecheck": "(cuda and agrees and (odd_group or tales or llama2_7b))"
    " or (cuda_equals and packed and (everything or d64))"
    " or (test_draw and agrees_with and 64-1000) or (gemv and (tiny or odd))",
}
TESTS = (
    "tests/kernels/test_add_norm.py",
    "tests/kernels/test_decode_attention_impls.py",
    "tests/kernels/test_decoder_stack.py",
    "tests/kernels/test_draw.py",
    "tests/kernels/test_embedding.py",
    "tests/kernels/test_matmul.py",
    "tests/kernels/test_prefill_attention.py",
    "tests/kernels/test_rope_kv_write.py",
)
ENVIRONMENT = {
    "JAX_PLATFORMS": "cuda",
    "XLA_FLAGS": "--xla_gpu_enable_command_buffer= --xla_gpu_autotune_level=0",
    "XLA_PYTHON_CLIENT_ALLOCATOR": "platform",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}


def command(tool: str, tests: Sequence[str], selection: str) -> list[str]:
    """The command line of one tool."""
    return [
        *("compute-sanitizer", "--tool", tool, "--kernel-name", "kns=fdjax"),
        *("--target-processes", "application-only"),
        *("--error-exitcode", "9", "--print-limit", "20"),
        *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-x"),
        *("-m", "gpu", "-k", selection, *tests),
    ]


def main() -> int:
    """Runs the tools one after the other; the first failure is the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tests", nargs="*", default=TESTS)
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("-k", dest="selection", help="instead of the tool's own")
    arguments = parser.parse_args()
    if shutil.which("compute-sanitizer") is None:
        raise SystemExit("compute-sanitizer is not on the path; it comes with CUDA")
    for tool in arguments.tools.split(","):
        selection = arguments.selection or TOOLS[tool]
        line = command(tool, arguments.tests, selection)
        print(*line, flush=True)
        status = subprocess.call(line, env={**os.environ, **ENVIRONMENT})
        if status != 0:
            return status
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
