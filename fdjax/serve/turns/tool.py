"""`Tool`: what a model may call."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Words that say more of an object's properties than `properties` does.
_OPEN = ("additionalProperties", "allOf", "anyOf", "oneOf", "patternProperties", "$ref")
# As chat templates write JSON, and so models.
_LAYOUT = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", "}


@dataclass(frozen=True)
class Tool:
    """A function that a model may call.

    Attributes:
        name: letters, digits, `_`, `-`, `.`.
        parameters: the JSON schema of its arguments, an object; `None`: it has none.
        described: all of it, as OpenAI's API has it and chat templates know it.
        strict: a call of it is held to the schema, also where the model makes it by
            itself.
    """

    name: str
    parameters: Mapping[str, Any] | None
    described: Mapping[str, Any]
    strict: bool = False

    @property
    def held_schema(self) -> dict[str, Any]:
        """The schema that a call is held to.

        It allows no property that `parameters` does not name, unless that says more of
        them: to a schema, arguments with any names are as good as none.
        """
        schema = {"type": "object", "properties": {}, **(self.parameters or {})}
        if not any(word in schema for word in _OPEN):
            schema["additionalProperties"] = False
        return {"x-guidance": _LAYOUT, **schema}
