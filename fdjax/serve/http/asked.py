"""What a request asks for as a whole, checked before any of it waits."""

from collections.abc import Sequence

from fdjax.errors import RequestError
from fdjax.generate.any_params import AnyParams, num_outputs
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.params import SamplingParams
from fdjax.generate.pooling_params import PoolingParams
from fdjax.serve.http.errors import ApiError
from fdjax.serve.http.server import Server
from fdjax.serve.prompts import CutPrompt, LastTokens, Prompt


def check_size(
    server: Server, *, num_prompts: int, params: AnyParams, field: str = "prompt"
) -> None:
    """Refuses what no server should hold at once.

    Args:
        server: whose limits hold.
        num_prompts: of the request.
        params: of each.
        field: that the prompts come in.

    Raises:
        ApiError: there are too many prompts, samples, or log-probabilities.
    """
    limits, n = server.limits, num_outputs(params)
    for name, count, limit in (
        (field, num_prompts, limits.prompts),
        ("n", n, limits.n),
        ("n", n * num_prompts, limits.samples),
    ):
        if count > limit:
            raise ApiError(
                f"{name} asks for {count} at once; ask for at most {limit}", param=name
            )
    if isinstance(params, PoolingParams) or params.logprobs is None:
        return
    longest = server.model.max_model_len
    tokens = longest if params.max_tokens is None else min(params.max_tokens, longest)
    each = 1 + params.logprobs
    if isinstance(params, BeamSearchParams):  # of all beams, until it is known
        n = params.beam_width
    count = n * num_prompts * tokens * each
    if count > limits.logprobs:
        raise ApiError(
            f"logprobs asks for {count} at once ({n * num_prompts} samples of "
            f"{tokens} tokens with {each} each); ask for at most {limits.logprobs}: "
            "lower max_tokens, n, or the number of log-probabilities",
            param="logprobs",
        )


def check_prompt_logprobs(server: Server, num_tokens: int, params: AnyParams) -> None:
    """Refuses more log-probabilities of prompts than an answer may have.

    Args:
        server: whose limits hold.
        num_tokens: of all prompts together, as the engine will read them.
        params: of each.

    Raises:
        RequestError: there are too many; it names `prompt_logprobs`.
    """
    if not isinstance(params, SamplingParams) or params.prompt_logprobs is None:
        return
    each, limit = 1 + params.prompt_logprobs, server.limits.logprobs
    count = params.n * num_tokens * each
    if count > limit:
        raise RequestError(
            f"prompt_logprobs asks for {count} at once ({params.n} samples of prompts "
            f"of {num_tokens} tokens with {each} each); ask for at most {limit}: send "
            "fewer or shorter prompts, or lower n or the number of log-probabilities"
        )


def cut(
    server: Server, prompts: Sequence[Prompt], count: int | None, params: AnyParams
) -> Sequence[CutPrompt]:
    """Prompts, of which the last tokens are read where a request asks for that.

    Args:
        server: whose model has a longest sequence.
        prompts: of the request.
        count: its `truncate_prompt_tokens`; -1 leaves as many as there is room for
            beside the output.
        params: of each prompt.

    Raises:
        ApiError: there are no prompts of that length.
    """
    if count is None:
        return prompts
    longest, room = server.model.max_model_len, 0
    if not isinstance(params, PoolingParams):
        room = 1 if params.max_tokens is None else params.max_tokens
    name = "truncate_prompt_tokens"
    if count == -1 and room >= longest:
        raise ApiError(
            f"{name} is -1, but max_tokens is {room} and max_model_len {longest}, so "
            f"there is no room for a prompt; lower max_tokens, or give {name} a number",
            param=name,
        )
    if count != -1 and not 1 <= count <= longest:
        raise ApiError(
            f"{name} is {count}; use 1 to {longest}, which is max_model_len, or -1 for "
            "as many as there is room for",
            param=name,
        )
    kept = longest - room if count == -1 else count
    return [LastTokens(prompt, kept) for prompt in prompts]
