"""What the handler of a step refuses itself, whoever wrote the launches."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fdjax.kernels.layer_program import call as layer_program
from fdjax.kernels.layer_program.launches import Decode, HeadNorm, Launch, Norm, Prefill
from fdjax.models.program import LayerProgram, Ran, cuda
from tests.support.handlers import skip_without
from tests.support.programs import call_of, config_of

type Change = Callable[[Launch], Launch]


def _without_total(one: Launch) -> Launch:
    return replace(one, delta=one.x) if isinstance(one, Norm) else one


def _odd_heads(one: Launch) -> Launch:
    return replace(one, head_dim=60) if isinstance(one, HeadNorm) else one


def _unshared(one: Launch) -> Launch:
    return replace(one, shares=False) if isinstance(one, Decode) else one


def _scaled(scale: float) -> Change:
    def changed(one: Launch) -> Launch:
        if not isinstance(one, Prefill):
            return one
        return replace(one, scores=replace(one.scores, scale=scale))

    return changed


def _run(call: LayerProgram) -> None:
    """Traced each time: a program of another test would have that one's launches."""

    def run(one: LayerProgram) -> Ran:
        return cuda.run(one)

    jax.block_until_ready(jax.jit(run)(call))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "kind", "change", "reason"),
    [
        ("llama", "decode", _without_total, "a norm has a delta, and no sum to write"),
        ("qwen3", "decode", _odd_heads, "D is 60; norms of heads take multiples of 8"),
        ("llama", "shared", _unshared, "what rows share does not follow what is their"),
        ("llama", "prefill", _scaled(-1.0), "scale is -1.000000; attention of prompts"),
        ("llama", "prefill", _scaled(float("nan")), "nan; attention of prompts"),
    ],
)
def test_launches_that_do_not_go_together_are_refused(
    name: str,
    kind: str,
    change: Change,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
):
    skip_without("layer_program", "gpu")
    run, changed = layer_program.run, list[Launch]()

    def told(launches: Any, *operands: Any, **options: Any) -> Any:
        others = [change(one) for one in launches]
        changed.extend(b for a, b in zip(launches, others, strict=True) if a is not b)
        return run(others, *operands, **options)

    monkeypatch.setattr(layer_program, "run", told)
    rows = 7 if kind == "shared" else 2
    call = call_of(config_of(name), kind, rows, dtype="bfloat16")
    with pytest.raises(jax.errors.JaxRuntimeError, match=reason):
        _run(call)
    assert changed


@pytest.mark.gpu
def test_a_rotation_without_angles_is_refused(monkeypatch: pytest.MonkeyPatch):
    skip_without("layer_program", "gpu")
    run = layer_program.run

    def told(
        launches: Any, memory: Any, tokens: Any, *operands: Any, **options: Any
    ) -> Any:
        assert any(isinstance(one, Decode) and one.rotates for one in launches)
        without = replace(tokens, angles=jnp.zeros((0, 0, 0), jnp.float32))
        return run(launches, memory, without, *operands, **options)

    monkeypatch.setattr(layer_program, "run", told)
    call = call_of(config_of("llama"), "decode", 2, dtype="bfloat16")
    with pytest.raises(jax.errors.JaxRuntimeError, match="there are no angles"):
        _run(call)
