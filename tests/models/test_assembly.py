import pathlib
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.errors import CheckpointError
from fdjax.models.assembly import Assembly, match
from fdjax.models.checkpoint import open_checkpoint
from fdjax.models.family import FusedRows, Rule
from tests.support.safetensors_writer import write_file, write_shards

RULES = (
    Rule("embed.weight", ("model.embed_tokens.weight",)),
    *(
        Rule(
            f"layers.{i}.qkv.weight",
            tuple(f"model.layers.{i}.{x}_proj.weight" for x in "qkv"),
            parts=tuple(FusedRows(x, 4 + i + j) for j, x in enumerate("qkv")),
        )
        for i in range(2)
    ),
)


def _array(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


def _tensors() -> dict[str, np.ndarray]:
    tensors = {"model.embed_tokens.weight": _array(10, 4)}
    for i in range(2):
        for j, x in enumerate("qkv"):
            tensors[f"model.layers.{i}.{x}_proj.weight"] = _array(4 + i + j, 4)
    return tensors


def _expected(dtype: Any = np.float32) -> dict[str, jax.ShapeDtypeStruct]:
    shapes = {
        "embed.weight": (10, 4),
        "layers.0.qkv.weight": (15, 4),
        "layers.1.qkv.weight": (18, 4),
    }
    return {path: jax.ShapeDtypeStruct(shape, dtype) for path, shape in shapes.items()}


def _match(
    folder: pathlib.Path, rules: tuple[Rule, ...] = RULES, **kwargs: Any
) -> tuple[Assembly, ...]:
    return match(open_checkpoint(folder), rules, _expected(), **kwargs)


def _problems(
    folder: pathlib.Path, tensors: dict[str, np.ndarray], **kwargs: Any
) -> tuple[str, ...]:
    write_file(folder / "model.safetensors", tensors)
    with pytest.raises(CheckpointError) as error:
        _match(folder, **kwargs)
    assert all(problem in str(error.value) for problem in error.value.problems)
    return error.value.problems


def test_sources_are_concatenated_in_order(tmp_path: pathlib.Path) -> None:
    tensors = _tensors()
    write_file(tmp_path / "model.safetensors", tensors)
    embed, first, second = _match(tmp_path)
    np.testing.assert_array_equal(embed.read(), tensors["model.embed_tokens.weight"])
    for i, assembly in enumerate((first, second)):
        parts = [tensors[f"model.layers.{i}.{x}_proj.weight"] for x in "qkv"]
        np.testing.assert_array_equal(assembly.read(), np.concatenate(parts))
    assert [a.num_bytes for a in (embed, first, second)] == [160, 240, 288]


def test_shards_of_mixed_dtypes(tmp_path: pathlib.Path) -> None:
    types = [np.float32, jnp.bfloat16, np.float16]
    tensors = {
        name: array.astype(types[i % 3])
        for i, (name, array) in enumerate(_tensors().items())
    }
    names = sorted(tensors)
    shards = {
        f"model-0000{i + 1}-of-00003.safetensors": {n: tensors[n] for n in names[i::3]}
        for i in range(3)
    }
    write_shards(tmp_path, shards)
    for assembly in _match(tmp_path)[1:]:
        parts = [tensors[t.name].astype(np.float32) for t in assembly.sources]
        np.testing.assert_array_equal(assembly.read(), np.concatenate(parts))


@pytest.mark.parametrize("stored", [np.float32, np.float16])
def test_a_transform_sees_each_source(tmp_path: pathlib.Path, stored: Any) -> None:
    tensors = {name: array.astype(stored) for name, array in _tensors().items()}
    write_file(tmp_path / "model.safetensors", tensors)
    # A view of its argument: the worst case, as it overlaps what it is written to.
    turned = (replace(rule, transform=lambda rows: rows[::-1]) for rule in RULES[1:])
    rules = (RULES[0], *turned)
    for i, assembly in enumerate(_match(tmp_path, rules)[1:]):
        parts = [tensors[f"model.layers.{i}.{x}_proj.weight"][::-1] for x in "qkv"]
        np.testing.assert_array_equal(assembly.read(), np.concatenate(parts))


def test_buffers_are_aligned_and_new_each_time(tmp_path: pathlib.Path) -> None:
    write_file(tmp_path / "model.safetensors", _tensors())
    assembly = _match(tmp_path)[0]
    first, second = assembly.read(), assembly.read()
    assert not np.shares_memory(first, second)
    assert first.ctypes.data % 64 == 0


def test_missing_tensors(tmp_path: pathlib.Path) -> None:
    tensors = _tensors()
    del tensors["model.embed_tokens.weight"], tensors["model.layers.1.k_proj.weight"]
    assert _problems(tmp_path, tensors) == (
        "tensor 'model.embed_tokens.weight' is missing",
        "tensor 'model.layers.1.k_proj.weight' is missing",
    )


def test_unexpected_tensors_unless_ignored(tmp_path: pathlib.Path) -> None:
    extra = {
        "model.layers.0.mask": np.ones((2, 2), bool),
        "score.weight": _array(2, 2),
    }
    tensors = {**_tensors(), **extra}
    assert _problems(
        tmp_path, tensors, ignored=[r"model\.layers\.\d+\.mask", "score"]
    ) == (
        "tensor 'score.weight' (F32 [2, 2] in model.safetensors) is not one of this "
        "model's",
    )
    ignored = [r".*\.mask", r"score\.weight"]
    assert len(_match(tmp_path, ignored=ignored)) == 3


def test_wrong_shapes_are_named_with_both(tmp_path: pathlib.Path) -> None:
    tensors = {
        **_tensors(),
        "model.embed_tokens.weight": _array(4, 10),
        "model.layers.0.k_proj.weight": _array(4, 4),
        "model.layers.1.v_proj.weight": _array(7, 4, 1),
    }
    assert _problems(tmp_path, tensors) == (
        "tensor 'model.embed_tokens.weight' has the shape [4, 10], but embed.weight "
        "needs [10, 4]",
        "tensor 'model.layers.0.k_proj.weight' has the shape [4, 4], but k in "
        "layers.0.qkv.weight needs [5, 4]",
        "tensor 'model.layers.1.v_proj.weight' has the shape [7, 4, 1], but v in "
        "layers.1.qkv.weight needs [7, 4]",
    )


def test_parts_that_only_together_have_the_size(tmp_path: pathlib.Path) -> None:
    tensors = _tensors()
    q, k = (f"model.layers.0.{x}_proj.weight" for x in "qk")
    tensors[q], tensors[k] = tensors[k], tensors[q]
    assert len(_problems(tmp_path, tensors)) == 2


def test_a_scalar_in_place_of_a_matrix(tmp_path: pathlib.Path) -> None:
    tensors = {**_tensors(), "model.embed_tokens.weight": np.zeros((), np.float32)}
    (problem,) = _problems(tmp_path, tensors)
    assert "has the shape [], but embed.weight needs [10, 4]" in problem


def test_dtypes_that_weights_cannot_have(tmp_path: pathlib.Path) -> None:
    tensors = {**_tensors(), "model.layers.1.q_proj.weight": np.zeros((5, 4), np.int32)}
    assert _problems(tmp_path, tensors) == (
        "tensor 'model.layers.1.q_proj.weight' is stored as I32; weights are read from "
        "F16, BF16, F32 (quantised checkpoints are not supported)",
    )


@pytest.mark.parametrize("has", ["", "model."])
def test_prefixes_may_be_there_or_not(tmp_path: pathlib.Path, has: str) -> None:
    tensors = {has + n.removeprefix("model."): a for n, a in _tensors().items()}
    write_file(tmp_path / "model.safetensors", tensors)
    assemblies = _match(tmp_path, prefixes=("model.",))
    assert assemblies[0].sources[0].name == f"{has}embed_tokens.weight"


def test_a_name_with_and_without_prefix_is_ambiguous(tmp_path: pathlib.Path) -> None:
    tensors = {**_tensors(), "embed_tokens.weight": _array(10, 4)}
    assert _problems(tmp_path, tensors, prefixes=("model.",)) == (
        "tensors 'model.embed_tokens.weight' and 'embed_tokens.weight' both stand for "
        "'model.embed_tokens.weight'",
    )


def test_all_problems_come_together(tmp_path: pathlib.Path) -> None:
    tensors = _tensors()
    tensors["score.weight"] = _array(2, 2)
    tensors["model.layers.0.q_proj.weight"] = np.zeros((4, 4), np.int32)
    tensors["model.layers.0.k_proj.weight"] = _array(1, 4)
    del tensors["model.layers.1.k_proj.weight"]
    names = list(tensors)
    write_shards(
        tmp_path,
        {
            "model-1.safetensors": {n: tensors[n] for n in names[:3]},
            "model-2.safetensors": {n: tensors[n] for n in names[3:-1]},
            "model-3.safetensors": {names[-1]: tensors[names[-1]]},
        },
    )
    path = tmp_path / "model-2.safetensors"
    path.write_bytes(path.read_bytes()[:-1])  # truncates v_proj of layer 1
    with pytest.raises(CheckpointError) as error:
        _match(tmp_path)
    text = "\n".join(error.value.problems)
    assert len(error.value.problems) == 5, text
    for part in (
        "'model.layers.1.v_proj.weight' ends at byte",
        "'model.layers.0.q_proj.weight' is stored as I32",
        "but k in layers.0.qkv.weight needs [5, 4]",
        "'model.layers.1.k_proj.weight' is missing",
        "'score.weight' (F32",
    ):
        assert part in text
    assert "5 problems with the checkpoint" in str(error.value)


def test_what_a_missing_shard_held_is_not_reported_again(
    tmp_path: pathlib.Path,
) -> None:
    tensors = _tensors()
    names = list(tensors)
    write_shards(
        tmp_path,
        {
            "model-1.safetensors": {n: tensors[n] for n in names[:3]},
            "model-2.safetensors": {n: tensors[n] for n in names[3:]},
        },
    )
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(CheckpointError) as error:
        _match(tmp_path)
    assert len(error.value.problems) == 1


COPIES = {"lm_head.weight": "model.embed_tokens.weight"}


def test_a_stored_copy_must_be_one(tmp_path: pathlib.Path) -> None:
    tensors = _tensors()
    embed = tensors["model.embed_tokens.weight"]
    write_file(tmp_path / "model.safetensors", {**tensors, "lm_head.weight": embed})
    assert len(_match(tmp_path, copies=COPIES)) == 3
    for other in (embed + np.float32(1), embed.astype(np.float16), embed.T.copy()):
        (problem,) = _problems(
            tmp_path, {**tensors, "lm_head.weight": other}, copies=COPIES
        )
        assert "'lm_head.weight' differs from 'model.embed_tokens.weight'" in problem
        assert "tie_word_embeddings" in problem


def test_a_copy_need_not_be_stored(tmp_path: pathlib.Path) -> None:
    write_file(tmp_path / "model.safetensors", _tensors())
    assert len(_match(tmp_path, copies=COPIES)) == 3
