"""Which tools an answer may call, or must."""

from dataclasses import dataclass

from fdjax.generate.structured import StructuredOutputs
from fdjax.serve.http.errors import ApiError
from fdjax.serve.http.schemas import ChatBody
from fdjax.serve.http.server import Server
from fdjax.serve.http.tool_fields import NamedTool
from fdjax.serve.turns.tool import Tool
from fdjax.serve.turns.turns import Turns


@dataclass(frozen=True)
class Calling:
    """What a chat asks of the tools it brings.

    Attributes:
        turns: of the model.
        tools: that the model is told of.
        callable: those of them that it may call.
        must: the answer is calls, and nothing else.
        parallel: it may have several.
    """

    turns: Turns
    tools: list[Tool]
    callable: list[Tool]
    must: bool
    parallel: bool

    @property
    def form(self) -> StructuredOutputs | None:
        """Of the answer, if it must be calls, or tools that it may call are strict.

        Raises:
            RequestError: the tools' schemas are too long or too deep.
        """
        turns = self.turns
        make = turns.held if self.must else turns.held_if_called
        return make(self.callable, parallel=self.parallel)


def calling(server: Server, body: ChatBody) -> Calling | None:
    """What a chat asks of the tools it brings; `None` if it may call none.

    Raises:
        ApiError: the fields do not suit each other, or the model.
    """
    check_tools(server, body.tools)
    tools, choice = body.tools or [], body.tool_choice
    if not tools and choice not in (None, "none", "auto"):
        raise ApiError(
            "tool_choice wants a tool to be called, but tools has none; give some",
            param="tool_choice",
        )
    turns = server.model.turns
    if not tools or choice == "none" or turns is None:
        return None
    must = choice not in (None, "auto")
    if not must and not turns.calls_are_known:
        raise ApiError(
            "tools: the model's chat template has no form of calls that is known; use "
            "tool_choice 'required' or 'none', or start the server with "
            "--tool-call-parser",
            param="tools",
        )
    if body.response_format is not None or body.structured_outputs is not None:
        field = "structured_outputs" if body.structured_outputs else "response_format"
        raise ApiError(
            f"{field} would keep the model from calling its tools; set tool_choice to "
            f"'none', or leave out {field}",
            param=field,
        )
    named = isinstance(choice, NamedTool)
    wanted = [tool for tool in tools if not named or tool.name == choice]
    if not wanted:
        raise ApiError(
            f"tool_choice names {choice}, but tools has no such function; use one of "
            f"{', '.join(tool.name for tool in tools)}",
            param="tool_choice",
        )
    parallel = body.parallel_tool_calls is not False and not named
    return Calling(turns, tools, wanted, must, parallel)


def check_tools(server: Server, tools: list[Tool] | None) -> None:
    """Refuses more tools than may be.

    Raises:
        ApiError: there are too many.
    """
    if tools is not None and len(tools) > server.limits.tools:
        raise ApiError(
            f"tools has {len(tools)} entries; use at most {server.limits.tools}",
            param="tools",
        )
