"""What every path of the server needs: the model, its limits, its state."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from fdjax.serve.async_llm import AsyncLLM
from fdjax.serve.http.errors import ApiError, unavailable
from fdjax.serve.http.metrics import Metrics


@dataclass(frozen=True)
class Limits:
    """What one request may ask for, besides the limits of `SamplingParams`.

    Attributes:
        body_bytes: of a request's body.
        body_seconds: until the body is there.
        prompts: of one request.
        n: samples of each prompt.
        samples: of all prompts together.
        messages: of a chat.
    """

    body_bytes: int = 4 * 2**20
    body_seconds: float = 30.0
    prompts: int = 256
    n: int = 128
    samples: int = 256
    messages: int = 4096


@dataclass(frozen=True)
class ServedModel:
    """What the API says of the model.

    Attributes:
        names: it is asked for by any of them; the first one answers.
        vocab_size: tokens.
        max_model_len: longest sequence, prompt and output together.
        chat: messages (role and content) to the tokens of a prompt; `None` where the
            model has no tokenizer.
        sampling: arguments of `SamplingParams` for what a request leaves open.
    """

    names: Sequence[str]
    vocab_size: int
    max_model_len: int
    chat: Callable[[Sequence[dict[str, str]]], list[int]] | None
    sampling: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


class Server:
    """The state of a running server.

    Attributes:
        draining: what runs is finished, and nothing new is taken.
    """

    def __init__(self, llm: AsyncLLM, model: ServedModel, limits: Limits) -> None:
        self.llm = llm
        self.model = model
        self.limits = limits
        self.metrics = Metrics(llm, model.names[0])
        self.created = int(time.time())
        self.draining = False

    @property
    def is_ready(self) -> bool:
        """It takes requests."""
        return self.llm.is_running and not self.draining

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
        """Refuses new work while the server drains.

        Raises:
            ApiError: 503.
        """
        if self.draining:
            raise unavailable(
                "the server is shutting down; use another one",
                code="draining",
                retry=True,
            )
