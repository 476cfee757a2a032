"""`import fdjax` is cheap: no extension, no torch, no tokenizers, no device."""

import subprocess
import sys

import fdjax

LAZY = ("torch", "transformers", "tokenizers", "huggingface_hub", "typer", "fdjax._ffi")


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
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


def test_serving_from_python_needs_no_http():
    extra = ("fastapi", "prometheus_client", "pydantic", "starlette", "uvicorn")
    result = python(
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({extra}))  # importing them now fails\n"
        "import fdjax, fdjax.serve.async_llm\n"
        "fdjax.AsyncLLM, fdjax.LLM\n"
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
