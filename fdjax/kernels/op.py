"""An operation, its implementations, and the one rule for choosing among them.

The rule: an implementation that `Op.using` forces serves the call, or `Unsupported` is
raised. Without one, the first implementation in the order given serves whose `refuse`
returns `None`. Where all refuse, the reference serves; when a program for a GPU is
traced, that is warned of once for each operation and shapes of arrays. An operation may
order its implementations for each call (`order`). Choices are logged at level DEBUG.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import jax

from fdjax.errors import Unsupported
from fdjax.kernels.reporting import tell, warn_of_reference
from fdjax.kernels.varying import varying_like

REFERENCE = "reference"

# Part of jit's cache key: switching it traces again, switching back hits the cache.
_forced = jax.make_user_context(())
_invariant = jax.make_user_context(False)


def batch_invariant(wanted: bool = True) -> AbstractContextManager[Any]:
    """Inside a `with` block: a row's result has bits that other rows do not change.

    Nor does their number, nor the width of their page tables. Only implementations of
    which that holds serve (`Impl.batch_invariant`), and they take no choice by the
    batch; an operation that has none here raises `fdjax.errors.Unsupported`. That holds
    within one kind of call: a row with one token may have other bits among rows of
    which some have more (`PageView.packed`) than among rows that all decode.
    Derivatives are those of the definition, and not invariant. `jax.jit` keeps what it
    traces here apart from what it traces elsewhere; another thread is outside.

    Args:
        wanted: `False` lets all of them serve, as outside.

    Raises:
        TypeError: `wanted` is something else.
    """
    if type(wanted) is not bool:
        raise TypeError(f"batch_invariant: wanted is {wanted!r}; give True or False")
    return _invariant(wanted)


def is_batch_invariant() -> bool:
    """Whether this is such a block: a kernel may have to be launched in another way."""
    return _invariant.value


def as_here() -> Callable[[], AbstractContextManager[Any]]:
    """Makes contexts in which another thread chooses as this one does now.

    It also copies the caller's default device and matmul precision, which JAX keeps per
    thread; otherwise jit would trace again.
    """
    forced, invariant = _forced.value, _invariant.value
    device = jax.config.jax_default_device
    precision = jax.config.jax_default_matmul_precision

    @contextmanager
    def alike() -> Generator[None]:
        with (
            _forced(forced),
            _invariant(invariant),
            jax.default_device(device),
            jax.default_matmul_precision(precision),
        ):
            yield

    return alike


@dataclass(frozen=True)
class Impl[C, R]:
    """One way to compute an operation, whose calls are described by a `C`.

    Attributes:
        run: computes a call; may assume that `refuse` returned `None`.
        refuse: says why this implementation cannot serve a call, or `None` when it
            can; it reads the types and shapes of arrays, not what they hold.
        batch_invariant: whether a row's result has the same bits whatever the other
            rows are, how many there are, and how wide their page tables.
        on_demand: whether it is tried only where `Op.using` forces it, and inside
            `batch_invariant()`.
        workspace: of a call, the bytes of device memory that it needs beside operands
            and results; `None`: they are not known, and count as 0.
        told: what `explain` says of how it serves a call, or `None`.
    """

    run: Callable[[C], R]
    refuse: Callable[[C], str | None]
    batch_invariant: bool = False
    on_demand: bool = False
    workspace: Callable[[C], int] | None = None
    told: Callable[[C], str] | None = None


class Op[C, R]:
    """An operation: its definition and the faster ways to compute it.

    A `C` describes one call: a frozen dataclass made by `fdjax.pytree.pytree`, whose
    leaves are the arrays. To ask who would serve a call, `jax.ShapeDtypeStruct`s stand
    in for them.

    Args:
        name: for messages.
        reference: the definition.
        impls: the other implementations, in order of preference.
        order: names the implementations to try for a call, best first. Those that it
            leaves out are not tried; only the reference always serves at the end.
        source: names what chose the order, or the launch config, of a call (a table,
            a heuristic); `explain` puts it in parentheses.
        batch_invariant: whether the reference is batch-invariant, as in `Impl`.
        workspace: of the reference, as in `Impl`.
        otherwise: what `explain` calls what is done where no implementation serves and
            a caller of `if_fast` has another way than the reference.
    """

    def __init__(
        self,
        name: str,
        reference: Callable[[C], R],
        impls: Mapping[str, Impl[C, R]] | None = None,
        order: Callable[[C], Sequence[str]] | None = None,
        source: Callable[[C], str] | None = None,
        *,
        batch_invariant: bool = False,
        workspace: Callable[[C], int] | None = None,
        otherwise: str = REFERENCE,
    ) -> None:
        self.name = name
        self._reference = reference
        self._impls = dict(impls or {})
        self._order = order
        self._source = source
        self._batch_invariant = batch_invariant
        self._workspace = workspace
        self._otherwise = otherwise

    @property
    def names(self) -> tuple[str, ...]:
        """Every implementation, in order of preference; the reference is last."""
        return (*self._impls, REFERENCE)

    def __call__(self, call: C) -> R:
        """Computes the operation by the implementation that the rule chooses."""
        name, refusals = self._choose(call)
        if name == REFERENCE:
            warn_of_reference(self.name, refusals, call)
            return self._reference(call)
        run = self._impls[name].run
        if jax.sharding.get_abstract_mesh().manual_axes:
            return varying_like(_jitted(run, call), call)
        return varying_like(run(call), call)

    def using(self, name: str) -> AbstractContextManager[Any]:
        """Forces one implementation inside a `with` block.

        Raises:
            ValueError: there is no implementation of that name.
        """
        if name not in self.names:
            known = ", ".join(self.names)
            raise ValueError(
                f"{self.name} has no implementation {name!r}; it has {known}"
            )
        others = tuple(entry for entry in _forced.value if entry[0] != self.name)
        return _forced((*others, (self.name, name)))

    def refuse(self, name: str, call: C) -> str | None:
        """Why implementation `name` cannot serve this call, or `None`."""
        if _invariant.value and not self._is_invariant(name):
            return "its bits depend on the batch"
        if name == REFERENCE:
            return None
        return self._impls[name].refuse(call)

    def choice(self, call: C) -> str:
        """The name of the implementation that serves this call.

        Raises:
            Unsupported: the one that `using` forces refuses the call; or, inside
                `batch_invariant()`, all do.
        """
        return self._choose(call)[0]

    def fast(self, call: C) -> bool:
        """Whether another implementation than the reference serves this call.

        Raises:
            Unsupported: see `choice`.
        """
        return self.choice(call) != REFERENCE

    def if_fast(self, call: C) -> Callable[[C], R] | None:
        """What computes the operation where `fast` is true; else `None`.

        Raises:
            Unsupported: see `choice`.
        """
        name, _ = self._choose(call)
        return None if name == REFERENCE else self._impls[name].run

    def workspace_bytes(self, call: C) -> int:
        """Bytes that the implementation which serves a call needs for it.

        They come on top of operands and results, and are 0 where it does not know.

        Raises:
            Unsupported: see `choice`.
        """
        name = self.choice(call)
        found = self._workspace if name == REFERENCE else self._impls[name].workspace
        return 0 if found is None else found(call)

    def explain(self, call: C) -> str:
        """One line: what serves this call and how, and why those before it do not."""
        return self._explanation(call, *self._find(call))

    def _choose(self, call: C) -> tuple[str, dict[str, str]]:
        name, refusals = self._find(call)
        tell(lambda: self._explanation(call, name, refusals))
        return name, refusals

    def _explanation(self, call: C, name: str, refusals: Mapping[str, str]) -> str:
        reasons = "".join(f"; not {n}: {reason}" for n, reason in refusals.items())
        # What is forced was not chosen by `source`, nor was the reference where it is
        # what is left after all have refused.
        free = self._forced_name() is None and not _invariant.value
        chosen = free and not (name == REFERENCE and refusals)
        source = f" ({self._source(call)})" if chosen and self._source else ""
        served_by = self._otherwise if name == REFERENCE else name
        return f"{self.name}: {served_by}{source}{self._told(call, name)}{reasons}"

    def _told(self, call: C, name: str) -> str:
        told = None if name == REFERENCE else self._impls[name].told
        return "" if told is None else f", {told(call)}"

    def _forced_name(self) -> str | None:
        return dict(_forced.value).get(self.name)

    def _find(self, call: C) -> tuple[str, dict[str, str]]:
        forced = self._forced_name()
        if forced is not None:
            if (reason := self.refuse(forced, call)) is not None:
                raise Unsupported(f"{self.name}[{forced}]: {reason}")
            return forced, {}
        refusals: dict[str, str] = {}
        for name in self._tried(call):
            if (reason := self.refuse(name, call)) is None:
                return name, refusals
            refusals[name] = reason
        if REFERENCE in refusals:
            reasons = "; ".join(f"{one}: {why}" for one, why in refusals.items())
            raise Unsupported(
                f"{self.name} has no batch-invariant implementation here ({reasons})"
            )
        return REFERENCE, refusals

    def _tried(self, call: C) -> Sequence[str]:
        if _invariant.value:  # `order` is by speed, and may leave these out
            return self.names
        names = self._order(call) if self._order else self.names
        return [n for n in names if n == REFERENCE or not self._impls[n].on_demand]

    def _is_invariant(self, name: str) -> bool:
        if name == REFERENCE:
            return self._batch_invariant
        return self._impls[name].batch_invariant


def _jitted[C, R](run: Callable[[C], R], call: C) -> R:
    """Inside a `shard_map` without a jit XLA crashes, of a call with several results.

    (jaxlib 0.11.2.) What is static is no part of jit's key: some numbers may be arrays,
    which cannot be compared there.
    """
    leaves, structure = jax.tree.flatten(call)

    @jax.jit
    def of(leaves: list[jax.Array]) -> R:
        return run(jax.tree.unflatten(structure, leaves))

    return of(leaves)
