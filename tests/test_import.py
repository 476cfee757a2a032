"""`import fdjax` is cheap: no extension, no torch, no tokenizers, no device."""

import os
import subprocess
import sys

import pytest

import fdjax

LAZY = ("torch", "transformers", "tokenizers", "huggingface_hub", "typer", "fdjax._ffi")


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    return subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        env=kept | environment,
    )


def test_the_engine_imports_without_what_it_may_not_need():
    result = python(
        "import sys\n"
        "sys.modules['fdjax._ffi'] = None  # importing it now fails\n"
        "import fdjax, fdjax.generate.loop\n"
        "fdjax.LLM, fdjax.ModelConfig\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge.backends_are_initialized()\n"
        f"print([name for name in {LAZY} if sys.modules.get(name)])\n"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"
    assert result.stderr == ""


@pytest.mark.parametrize(
    "imports",
    [
        "import fdjax, fdjax.serve.async_llm; fdjax.AsyncLLM, fdjax.LLM",
        # What the engine's process of a server imports, while nobody is served yet.
        "import fdjax.cli.engine_process, fdjax.serve.apart.host\n"
        "import fdjax.serve.http.logs",
    ],
)
def test_what_serves_no_http_does_not_import_it(imports: str):
    extra = ("fastapi", "prometheus_client", "pydantic", "starlette", "uvicorn")
    result = python(
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({extra}))  # importing them now fails\n"
        f"{imports}\n"
    )
    assert result.returncode == 0, result.stderr


def test_errors_do_not_wait_for_jax():
    result = python(
        "import sys, fdjax\n"
        "fdjax.RequestError, fdjax.__version__\n"
        "assert 'jax' not in sys.modules\n"
    )
    assert result.returncode == 0, result.stderr


def test_every_public_name_is_there():
    for name in fdjax.__all__:
        assert getattr(fdjax, name) is not None
    assert set(fdjax.__all__) <= set(dir(fdjax))


def test_other_names_are_not():
    code = "import fdjax; fdjax.Nonsense"
    assert "module 'fdjax' has no attribute 'Nonsense'" in python(code).stderr


@pytest.mark.parametrize(
    ("first", "environment", "is_quiet"),
    [
        ("import fdjax; fdjax.LLM", {}, True),
        ("from fdjax import SamplingParams", {}, True),
        ("import fdjax; fdjax.LLM", {"TF_CPP_MIN_LOG_LEVEL": "1"}, False),
        ("import jax, fdjax; fdjax.LLM", {}, False),  # too late
        ("import fdjax.ops", {}, False),  # the process is another stack's
    ],
)
def test_xla_warns_only_those_who_said_so(
    first: str, environment: dict[str, str], is_quiet: bool
):
    """Here of an instruction set that it does not know, when it compiles."""
    code = f"{first}\nimport jax\njax.jit(lambda x: x + 1)(1.0).block_until_ready()"
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_cpu_max_isa=NONE_SUCH"}
    result = python(code, **flags, **environment)
    assert result.returncode == 0, result.stderr
    assert ("NONE_SUCH" not in result.stderr) == is_quiet
