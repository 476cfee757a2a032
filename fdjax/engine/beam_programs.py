"""`BeamPrograms`: the programs of beam searches, which may be compiled ahead of them.

There are very many of them: by beams, groups, lengths and what is asked of each. So
none is compiled before it is needed, and only the last ones are kept. Whoever serves
others meanwhile prepares a search in another thread: a step that met a new kind of it
would hold up everybody for the seconds that compiling takes.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakValueDictionary

import jax

_MAX_KEPT = 64

type Kind = Literal["begin", "begin_judged", "end_judged", "step", "judged_step"]
type Key = tuple[Callable[..., Any], Any]
type Alike = tuple[Any, ...]
"""What searches have in common that one program can serve."""


@dataclass(frozen=True)
class BeamProgram:
    """One that is compiled.

    Attributes:
        key: what it is found by.
        call: runs it.
        results: their shapes.
    """

    key: Key
    call: Callable[..., Any]
    results: Any


class Prepared(dict[Key, BeamProgram]):
    """Programs of one search, which it has as long as it likes."""


@dataclass(frozen=True)
class BeamFunction:
    """What a program is compiled from.

    Attributes:
        function: of arrays.
        donated: places of operands that it changes.
        num_fixed: operands, the first, whose shapes are always the same.
    """

    function: Callable[..., Any]
    donated: tuple[int, ...] = ()
    num_fixed: int = 0


# Of all engines of the process: what needs no weights is the same in each of them.
_KEPT: OrderedDict[Key, BeamProgram] = OrderedDict()
# And those that some search still has.
_HELD: WeakValueDictionary[Key, BeamProgram] = WeakValueDictionary()
_LOCK = threading.Lock()


class BeamPrograms:
    """Compiles programs, and keeps the last ones; any thread may use it.

    Args:
        functions: to be compiled.
        options: of the compiler.
    """

    def __init__(
        self,
        functions: Mapping[Kind, BeamFunction],
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._functions = functions
        self._options = dict(options or {})

    def key(self, kind: Kind, operands: tuple[Any, ...]) -> Key:
        """What a program is found by: the shapes of what is not always the same."""
        given = self._functions[kind]
        leaves, structure = jax.tree.flatten(operands[given.num_fixed :])
        shapes = ((one.shape, one.dtype) for one in leaves)
        return given.function, (structure, *shapes)

    def kept(self, key: Key) -> BeamProgram | None:
        """A program that need not be compiled: one of the last, or of a search."""
        with _LOCK:
            program = _HELD.get(key)
            if program is not None:
                _keep(program)
            return program

    def compiled(self, kind: Kind, key: Key, operands: tuple[Any, ...]) -> BeamProgram:
        """A program; takes seconds if it is not kept.

        Args:
            kind: of it.
            key: of the operands.
            operands: arrays, or their shapes.
        """
        kept = self.kept(key)
        if kept is not None:
            return kept
        given = self._functions[kind]

        # Of its own: jit keeps what it has compiled as long as there is the function.
        def alone(*operands: Any) -> Any:
            return given.function(*operands)

        lowered = jax.jit(alone, donate_argnums=given.donated).lower(*operands)
        compiled = lowered.compile(self._options)
        made = BeamProgram(key, compiled, lowered.out_info)
        with _LOCK:
            _HELD[key] = made
            _keep(made)
        return made


def _keep(program: BeamProgram) -> None:
    """As the last of those that are kept."""
    _KEPT[program.key] = program
    _KEPT.move_to_end(program.key)
    while len(_KEPT) > _MAX_KEPT:
        _KEPT.popitem(last=False)
