"""From rules and a checkpoint to one plan per parameter, or every reason why not."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import jax
import numpy as np

from fdjax.errors import CheckpointError
from fdjax.models.checkpoint import Checkpoint
from fdjax.models.family import Rule, Transform
from fdjax.models.safetensors_file import READABLE, Tensor, read_tensor, same_tensor

# XLA's CPU client takes a buffer over without a copy if it is aligned to this.
_ALIGNMENT_BYTES = 64


@dataclass(frozen=True)
class Assembly:
    """One parameter and the tensors it is made of.

    Attributes:
        path: the parameter's path in the decoder.
        shape: its shape.
        dtype: its dtype.
        sources: the tensors, concatenated along axis 0.
        transform: applied to each source first; keeps its shape.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype
    sources: tuple[Tensor, ...]
    transform: Transform | None = None

    @property
    def num_bytes(self) -> int:
        """Size of the parameter."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def read(self) -> np.ndarray:
        """Reads the parameter into one new buffer, cast to its dtype.

        The buffer belongs to the caller alone. A transform takes a second buffer of
        a source's size while it runs.

        Raises:
            CheckpointError: see `read_tensor`.
        """
        buffer = _aligned(self.num_bytes).view(self.dtype).reshape(self.shape)
        first = 0
        for tensor in self.sources:
            rows = buffer[first : first + tensor.shape[0]]
            read_tensor(tensor, rows)
            if self.transform is not None:
                rows[...] = self.transform(rows)
            first += tensor.shape[0]
        return buffer


def match(
    checkpoint: Checkpoint,
    rules: Iterable[Rule],
    expected: Mapping[str, jax.ShapeDtypeStruct],
    *,
    ignored: Iterable[str] = (),
    prefixes: Iterable[str] = (),
    copies: Mapping[str, str] | None = None,
) -> tuple[Assembly, ...]:
    """Finds the tensors of every parameter; reads none but `copies`.

    Args:
        checkpoint: the files.
        rules: one per parameter.
        expected: shape and dtype of every parameter, by path.
        ignored: regular expressions (whole name) of tensors that are not needed.
        prefixes: prefixes of names that a checkpoint may have or lack.
        copies: tensors that may be stored although they must equal another one, as
            the head of a model with tied embeddings.

    Returns:
        One plan per parameter, in the order of `expected`.

    Raises:
        CheckpointError: all faults of the checkpoint together: its own `problems`,
            tensors that are missing, ambiguous, unexpected, of a wrong shape or of a
            dtype that weights cannot have, and copies that differ.
    """
    by_target = {rule.target: rule for rule in rules}
    assert by_target.keys() == expected.keys(), by_target.keys() ^ expected.keys()
    names = _Names(checkpoint, tuple(prefixes))
    problems = list(checkpoint.problems)
    assemblies: list[Assembly] = []
    for path, parameter in expected.items():
        found = _assemble(by_target[path], parameter, names)
        if isinstance(found, Assembly):
            assemblies.append(found)
        else:
            problems += found
    copies = copies or {}
    known = [name for rule in by_target.values() for name in rule.sources]
    problems += names.unexpected((*known, *copies), tuple(ignored))
    problems += _differing(copies, names)
    if problems:
        raise CheckpointError(str(checkpoint.folder), problems)
    return tuple(assemblies)


class _Names:
    """Tensors by their name without prefix."""

    def __init__(self, checkpoint: Checkpoint, prefixes: tuple[str, ...]) -> None:
        self._prefixes = prefixes
        self._found: dict[str, list[Tensor]] = {}
        for name, tensor in checkpoint.tensors.items():
            self._found.setdefault(self._bare(name), []).append(tensor)
        self._promised = {self._bare(name) for name in checkpoint.promised}

    def find(self, name: str) -> Tensor | list[str]:
        """The tensor of that name, or the problems with it (perhaps known ones)."""
        found = self._found.get(self._bare(name), [])
        if len(found) == 1:
            return found[0]
        if found:
            both = " and ".join(repr(tensor.name) for tensor in found)
            return [f"tensors {both} both stand for {name!r}"]
        if self._bare(name) in self._promised:
            return []
        return [f"tensor {name!r} is missing"]

    def unexpected(
        self, known: Iterable[str], ignored: tuple[str, ...]
    ) -> Iterator[str]:
        """One problem for each tensor that is neither known nor ignored."""
        known = {self._bare(name) for name in known}
        patterns = [re.compile(pattern) for pattern in ignored]
        for bare, tensors in self._found.items():
            if bare in known:
                continue
            for tensor in tensors:
                spellings = (bare, tensor.name)
                if not any(p.fullmatch(name) for p in patterns for name in spellings):
                    yield (
                        f"tensor {tensor.name!r} ({tensor.dtype} {list(tensor.shape)} "
                        f"in {tensor.path.name}) is not one of this model's"
                    )

    def _bare(self, name: str) -> str:
        for prefix in self._prefixes:
            if name.startswith(prefix):
                return name.removeprefix(prefix)
        return name


def _assemble(
    rule: Rule, parameter: jax.ShapeDtypeStruct, names: _Names
) -> Assembly | list[str]:
    sources: list[Tensor] = []
    problems: list[str] = []
    for name in rule.sources:
        tensor = names.find(name)
        if isinstance(tensor, Tensor):
            sources.append(tensor)
            problems += _dtype_problem(tensor)
        else:
            problems += tensor
    if len(sources) == len(rule.sources):
        problems += _shape_problem(sources, rule, parameter.shape)
        if not problems:
            dtype = np.dtype(parameter.dtype)
            return Assembly(
                rule.target, parameter.shape, dtype, tuple(sources), rule.transform
            )
    return problems


def _dtype_problem(tensor: Tensor) -> Iterator[str]:
    if tensor.dtype not in READABLE:
        readable = ", ".join(READABLE)
        yield (
            f"tensor {tensor.name!r} is stored as {tensor.dtype}; weights are read "
            f"from {readable} (quantised checkpoints are not supported)"
        )


def _shape_problem(
    sources: list[Tensor], rule: Rule, shape: tuple[int, ...]
) -> Iterator[str]:
    """One problem for each source that has another shape than its place."""
    rows = {rule.target: shape[0]}
    if len(sources) > 1:
        rows = {f"{part.name} in {rule.target}": part.rows for part in rule.parts}
    for tensor, (place, count) in zip(sources, rows.items(), strict=True):
        needed = (count, *shape[1:])
        if tensor.shape != needed:
            yield (
                f"tensor {tensor.name!r} has the shape {list(tensor.shape)}, but "
                f"{place} needs {list(needed)}"
            )


def _differing(copies: Mapping[str, str], names: _Names) -> Iterator[str]:
    for name, original_name in copies.items():
        copy, original = names.find(name), names.find(original_name)
        if not isinstance(copy, Tensor) or not isinstance(original, Tensor):
            continue  # not stored, which is the rule, or a problem reported already
        if not same_tensor(copy, original):
            yield (
                f"tensor {copy.name!r} differs from {original.name!r}, but config.json "
                "ties them; if they are meant to differ, set tie_word_embeddings to "
                "false there"
            )


def _aligned(num_bytes: int) -> np.ndarray:
    memory = np.empty(num_bytes + _ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT_BYTES
    return memory[start : start + num_bytes]
