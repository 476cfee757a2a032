"""The extension: registration, refusals, and handlers that answer bad calls."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels import ffi
from tests.support.handlers import skip_without
from tests.support.python import run_python


@pytest.fixture
def extension() -> Any:
    skip_without("rope_kv_write", "cpu")
    from fdjax import _ffi

    return _ffi


def test_build_info_describes_the_build(extension: Any):
    info = extension.build_info()
    assert info["ffi_api"][0] == 0
    assert info["version"]
    assert bool(info["gpu_architectures"]) == (len(extension.targets()) > 1)


def test_target_names_change_with_the_sources(extension: Any):
    name = ffi.target("rope_kv_write")
    assert name == f"fdjax.rope_kv_write.{extension.build_info()['build_id']}"


def test_importing_starts_no_backend():
    printed = run_python(
        "import jax, fdjax, fdjax.kernels.rope_kv_write",
        "from jax._src import xla_bridge",
        "print(xla_bridge.backends_are_initialized())",
    )
    assert printed == "False\n"


def test_without_the_extension_the_reference_serves():
    printed = run_python(
        "import sys; sys.modules['fdjax._ffi'] = None",
        "import jax; jax.config.update('jax_platforms', 'cpu')",
        "import fdjax",
        "from fdjax.kernels.rope_kv_write import OP, cases",
        "case = next(c for c in cases.CASES if 'ci' in c.tags)",
        "print(OP.explain(case.call))",
    )
    assert printed.startswith("rope_kv_write: reference; not cuda: the extension ")
    assert "fdjax._ffi is not built: install fdjax with pip" in printed


@pytest.mark.usefixtures("extension")
def test_refuses_an_operation_without_a_handler():
    reason = ffi.refuse("transmogrify", platform="cpu")
    assert reason == "the extension fdjax._ffi has no cpu handler for transmogrify"


@pytest.mark.usefixtures("extension")
def test_refuses_a_gpu_without_gpu_handlers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ffi, "_targets", {"cpu": frozenset({"rope_kv_write"})})
    reason = ffi.refuse("rope_kv_write", platform="gpu")
    assert reason is not None and "without GPU handlers" in reason


@pytest.mark.usefixtures("extension")
def test_refuses_another_platform(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ffi.device, "platform", lambda: "gpu")
    reason = ffi.refuse("rope_kv_write", platform="cpu")
    assert reason == "it runs on cpu, and the call is traced for gpu"


# --- Handlers check what they are given: an error, never a crash ----------------------

type Arrays = dict[str, Any]


def _arrays() -> Arrays:
    return {
        "qkv": jnp.zeros((3, 4, 8)),
        "kv": jnp.zeros((2, 3, 2, 4, 1, 8)),
        "positions": jnp.zeros(3, jnp.int32),
        "slots": jnp.zeros(3, jnp.int32),
        "frequencies": jnp.zeros(4),
        "query": jax.ShapeDtypeStruct((3, 2, 8), jnp.float32),
        "attributes": {"layer": np.int64(0), "interleaved": np.bool_(False)},
        "aliases": {1: 1},
    }


def _call(arrays: Arrays) -> None:
    operands = [arrays[n] for n in ("qkv", "kv", "positions", "slots", "frequencies")]
    results = (
        arrays["query"],
        jax.ShapeDtypeStruct(operands[1].shape, operands[1].dtype),
    )
    call = jax.ffi.ffi_call(
        ffi.target("rope_kv_write"), results, input_output_aliases=arrays["aliases"]
    )
    jax.block_until_ready(
        call(*operands, attributes=ffi.Attributes(arrays["attributes"]))
    )


BAD_CALLS: dict[str, tuple[Callable[[Arrays], object], str]] = {
    "rank": (
        lambda a: a.update(qkv=jnp.zeros((3, 32))),
        "qkv has 2 dimensions, the handler takes 3",
    ),
    "positions": (
        lambda a: a.update(positions=jnp.zeros(4, jnp.int32)),
        r"positions: dimension T \(axis 0\) is 4, but qkv has T = 3",
    ),
    "slots": (lambda a: a.update(slots=jnp.zeros(2, jnp.int32)), "slots: dimension T"),
    "head_size": (
        lambda a: a.update(kv=jnp.zeros((2, 3, 2, 4, 1, 6))),
        r"kv: dimension D \(axis 5\) is 6, but qkv has D = 8",
    ),
    "keys_and_values": (
        lambda a: a.update(kv=jnp.zeros((2, 3, 1, 4, 1, 8))),
        r"kv: dimension 2 \(axis 2\) is 1",
    ),
    "heads": (lambda a: a.update(qkv=jnp.zeros((3, 2, 8))), "no query heads beside 2"),
    "frequencies": (
        lambda a: a.update(frequencies=jnp.zeros(5)),
        "dimension D is 8; it must be even and at least 2 . R2 = 10",
    ),
    "query": (
        lambda a: a.update(query=jax.ShapeDtypeStruct((3, 3, 8), jnp.float32)),
        r"query: dimension Hq \(axis 1\) is 3, but fdjax has Hq = 2",
    ),
    "layer": (
        lambda a: a["attributes"].update(layer=np.int64(3)),
        "layer is 3, but kv has L = 3",
    ),
    "dtype": (
        lambda a: a.update(qkv=jnp.zeros((3, 4, 8), jnp.int32)),
        "qkv has element type 4; the handler takes float32, bfloat16 and float16",
    ),
    "mixed_dtypes": (
        lambda a: a.update(kv=jnp.zeros((2, 3, 2, 4, 1, 8), jnp.float16)),
        "kv has element type 10, but qkv has 11",
    ),
    "no_alias": (lambda a: a.update(aliases={}), "kv: the result must alias"),
    "index_dtype": (lambda a: a.update(slots=jnp.zeros(3)), "dtype.*S32.*F32"),
    "attribute_missing": (
        lambda a: a["attributes"].pop("interleaved"),
        "expected 2 attributes but got 1",
    ),
    "attribute_of_another_name": (
        lambda a: a.update(attributes={"layer": np.int64(0), "paired": np.bool_(True)}),
        "Unexpected attribute: interleaved",
    ),
    "attribute_too_many": (
        lambda a: a["attributes"].update(scale=np.float32(1)),
        "expected 2 attributes but got 3",
    ),
    "attributes_of_no_struct": (
        lambda a: a.update(attributes={}),
        "expected 2 attributes but got 0",
    ),
    # Not 0: the float 0 equals the integer that the good call was compiled for.
    "attribute_dtype": (
        lambda a: a["attributes"].update(layer=np.float32(1)),
        "S64.*F32",
    ),
}


@pytest.mark.usefixtures("extension")
@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls_come_back_as_errors(name: str):
    spoil, message = BAD_CALLS[name]
    arrays = _arrays()
    _call(arrays)
    spoil(arrays)
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        _call(arrays)


@pytest.mark.cpu
def test_what_needs_hopper_does_not_run_on_a_cpu():
    assert "needs sm_90" in str(ffi.refuse_below_sm90())
