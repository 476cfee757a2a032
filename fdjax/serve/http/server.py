"""What every path of the server needs: the model, its limits, its state."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from fdjax.serve.async_llm import AsyncLLM
from fdjax.serve.chat_template import ChatEnd, ChatText, Message
from fdjax.serve.http.aborts import Abortable
from fdjax.serve.http.errors import ApiError, draining, stalled
from fdjax.serve.http.keyring import Keyring
from fdjax.serve.http.limits import Limits
from fdjax.serve.http.metrics import PREFIX, Metrics
from fdjax.serve.http.underway import Underway
from fdjax.serve.turns.turns import Turns

STALL_SECONDS = 300.0


type Render = Callable[
    [
        Sequence[Message],
        Sequence[Mapping[str, Any]] | None,
        Mapping[str, Any] | None,
        ChatEnd,
    ],
    ChatText,
]


@dataclass(frozen=True)
class ServedModel:
    """What the API says of the model.

    Attributes:
        names: it is asked for by any of them; the first one answers.
        vocab_size: tokens.
        max_model_len: longest sequence, prompt and output together.
        chat: messages, tools and options of a chat template, and how it should end, to
            the text of a prompt; `None` where the model has no tokenizer.
        turns: how the model's answers to chats are read; `None` likewise.
        sampling: arguments of `SamplingParams` for what a request leaves open.
    """

    names: Sequence[str]
    vocab_size: int
    max_model_len: int
    chat: Render | None
    turns: Turns | None = None
    sampling: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


class Server:
    """The state of a running server.

    Attributes:
        keyring: whose requests are served.
        draining: what runs is finished, and nothing new is taken.
        stall_seconds: that a step of the engine may take.
        underway: all requests that are served.
        abortable: what can be ended by its id.
    """

    def __init__(
        self,
        llm: AsyncLLM,
        model: ServedModel,
        limits: Limits,
        keyring: Keyring,
        *,
        stall_seconds: float = STALL_SECONDS,
        metrics_prefix: str = PREFIX,
    ) -> None:
        self.llm = llm
        self.model = model
        self.limits = limits
        self.keyring = keyring
        self.metrics = Metrics(llm, model.names[0], keyring, prefix=metrics_prefix)
        self.created = int(time.time())
        self.draining = False
        self.abortable = Abortable()
        self.stall_seconds = stall_seconds
        self.underway = Underway()

    @property
    def is_stalled(self) -> bool:
        """The engine's step does not end."""
        return self.llm.step_age_s > self.stall_seconds

    @property
    def is_alive(self) -> bool:
        """It can serve requests, or could if it did not drain."""
        return self.llm.is_running and not self.is_stalled

    @property
    def is_ready(self) -> bool:
        """It takes requests."""
        return self.is_alive and not self.draining

    def check_model(self, name: str | None) -> None:
        """Refuses a model that is not served.

        Raises:
            ApiError: 404.
        """
        if name is not None and name not in self.model.names:
            raise ApiError(
                f"model {name[:100]!r} is not served; use "
                f"{' or '.join(map(repr, self.model.names))}",
                status=404,
                param="model",
                code="model_not_found",
            )

    def check_open(self) -> None:
        """Refuses new work while the server drains, or its engine does not go on.

        Raises:
            ApiError: 503.
        """
        if self.draining:
            raise draining()
        if self.is_stalled:
            raise stalled(self.llm.step_age_s)
