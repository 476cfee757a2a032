"""`Message`: one turn of a chat, in OpenAI's words."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from fdjax.serve.http.errors import ApiError
from fdjax.serve.http.fields import Content, Text, few_turns
from fdjax.serve.http.strict_body import Body
from fdjax.serve.http.tool_fields import Calls


class Message(Body):
    """One turn of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: Text | None = None
    reasoning: Text | None = None
    reasoning_content: Text | None = None
    tool_calls: Calls = None
    tool_call_id: Text | None = None

    @model_validator(mode="after")
    def _suits_its_role(self) -> Self:
        for field, role in (
            ("tool_calls", "assistant"),
            ("reasoning", "assistant"),
            ("reasoning_content", "assistant"),
            ("tool_call_id", "tool"),
        ):
            if getattr(self, field) is not None and self.role != role:
                raise ApiError(
                    f"messages: {field} is for the role {role}, not {self.role}",
                    param="messages",
                )
        if self.content is None and not self.tool_calls:
            raise ApiError(
                f"messages: content is missing, of the role {self.role}",
                param="messages",
            )
        return self

    def plain(self) -> dict[str, Any]:
        """The words that chat templates know."""
        role = "system" if self.role == "developer" else self.role
        reasoning = self.reasoning or self.reasoning_content
        more = {
            "name": self.name,
            # Templates have either word.
            "reasoning": reasoning,
            "reasoning_content": reasoning,
            "tool_calls": self.tool_calls,
            "tool_call_id": self.tool_call_id,
        }
        given = {name: value for name, value in more.items() if value is not None}
        return {"role": role, "content": self.content or "", **given}


_AT_LEAST_ONE = Field(min_length=1, fail_fast=True)
Messages = Annotated[list[Message], _AT_LEAST_ONE, BeforeValidator(few_turns)]
"""The turns of a chat, counted before any is read."""
