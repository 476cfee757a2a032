"""`Limits`: what one request may ask for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What one request may ask for, besides the limits of `SamplingParams`.

    Attributes:
        body_bytes: of a request's body.
        body_seconds: until the body is there.
        bodies: of the longest that may be on their way together, in bytes.
        prompts: of one request.
        n: samples of each prompt.
        samples: of all prompts together.
        messages: of a chat.
        tools: that a chat's answer may call.
        logprobs: of all tokens of all samples.
        seconds: until the whole answer is there; `None` lets it take any time.
    """

    body_bytes: int = 4 * 2**20
    body_seconds: float = 30.0
    bodies: int = 32
    prompts: int = 256
    n: int = 128
    samples: int = 256
    messages: int = 4096
    tools: int = 128
    logprobs: int = 2**19  # about 40 MB of JSON
    seconds: float | None = None
