"""What a request asks for as a whole, checked before any of it waits."""

from fdjax.generate.any_params import AnyParams, num_outputs
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.params import SamplingParams
from fdjax.serve.http.errors import ApiError
from fdjax.serve.http.server import Server


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
    width = params.beam_width if isinstance(params, BeamSearchParams) else 1
    for name, count, limit in (
        ("beam_width", width, limits.n),
        (field, num_prompts, limits.prompts),
        ("n", n, limits.n),
        ("n", n * num_prompts, limits.samples),
    ):
        if count > limit:
            raise ApiError(
                f"{name} asks for {count} at once; ask for at most {limit}", param=name
            )
    if not isinstance(params, SamplingParams) or params.logprobs is None:
        return
    longest = server.model.max_model_len
    tokens = longest if params.max_tokens is None else min(params.max_tokens, longest)
    each = 1 + params.logprobs
    if isinstance(params, BeamSearchParams):  # of all beams, until it is known
        n = params.beam_width
    elif params.prompt_logprobs is not None:  # of a prompt as long as may be
        tokens = longest
    count = n * num_prompts * tokens * each
    if count > limits.logprobs:
        raise ApiError(
            f"logprobs asks for {count} at once ({n * num_prompts} samples of "
            f"{tokens} tokens with {each} each); ask for at most {limits.logprobs}: "
            "lower max_tokens, n, or the number of log-probabilities",
            param="logprobs",
        )
