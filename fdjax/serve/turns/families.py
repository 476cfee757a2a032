"""How families of models write calls of tools."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from fdjax.serve.turns import hermes, llama, mistral
from fdjax.serve.turns.parts import CallParser


@dataclass(frozen=True)
class CallFormat:
    """How a family writes calls: texts in this order, of which some are tokens.

    Attributes:
        name: the word of `--tool-call-parser`.
        parser: finds calls of tools of some names in a text.
        opening: in front of all calls.
        before: in front of a tool's name.
        middle: between name and arguments.
        after: after the arguments.
        separator: between two calls.
        closing: after all calls.
        markers: those of these texts that may be special tokens, and other such tokens
            that the parser knows.
        id_length: letters and digits of a call's id; `None` has none to say.
    """

    name: str
    parser: Callable[[Collection[str]], CallParser]
    opening: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    middle: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    separator: tuple[str, ...] = ()
    closing: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    id_length: int | None = None

    @property
    def marker(self) -> str | None:
        """The text that no other text has: a call begins. `None` where none does."""
        first = (*self.opening, *self.before)[0]
        return first if first in self.markers else None


HERMES = CallFormat(
    "hermes",
    lambda names: hermes.HermesCalls(),
    before=(hermes.BEGIN, '\n{"name": "'),
    middle=('", "arguments": ',),
    after=("}\n", hermes.END),
    separator=("\n",),
    markers=(hermes.BEGIN, hermes.END),
)
_LLAMA = CallFormat(
    "llama3_json",
    llama.LlamaCalls,
    before=('{"name": "',),
    middle=('", "parameters": ',),
    after=("}",),
    separator=("; ",),
    markers=(llama.BEGIN,),
)
_MISTRAL = CallFormat(
    "mistral",
    lambda names: mistral.MistralCalls(),
    opening=(mistral.BEGIN, " ["),
    before=('{"name": "',),
    middle=('", "arguments": ',),
    after=("}",),
    separator=(", ",),
    closing=("]",),
    markers=(mistral.BEGIN, mistral.ARGUMENTS, mistral.CALL_ID),
    id_length=9,
)
_MISTRAL_NAMED = replace(
    _MISTRAL,
    opening=(),
    before=(mistral.BEGIN,),
    middle=(mistral.ARGUMENTS,),
    after=(),
    separator=(),
    closing=(),
)
FAMILIES: Mapping[str, CallFormat] = MappingProxyType(
    {family.name: family for family in (HERMES, _LLAMA, _MISTRAL)}
)


def family_of(template: str, name: str | None = None) -> CallFormat | None:
    """The family whose words a chat template has.

    Args:
        template: its text; empty where there is none.
        name: takes that one, whatever the template has.
    """
    if name is None:
        name = _found(template)
    if name == _MISTRAL.name and mistral.ARGUMENTS in template:
        return _MISTRAL_NAMED
    return FAMILIES.get(name or "")


def _found(template: str) -> str | None:
    if mistral.BEGIN in template:
        return _MISTRAL.name
    if hermes.BEGIN in template and "<function=" not in template:
        return HERMES.name
    if "tools" in template and '"parameters": ' in template:
        return _LLAMA.name
    return None
