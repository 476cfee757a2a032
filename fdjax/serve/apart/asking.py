"""What a request asks for, between processes: parameters, origins, and refusals."""

import dataclasses
from array import array
from collections.abc import Sequence
from typing import Any, cast

from fdjax import errors
from fdjax.engine.limits import Load
from fdjax.engine.origin import Origin
from fdjax.engine.queue_check import Waiting
from fdjax.engine.request import Request
from fdjax.engine.statistics import EngineStatistics
from fdjax.generate.any_params import AnyParams
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.params import SamplingParams
from fdjax.generate.pooling_params import PoolingParams
from fdjax.generate.softmax_counts import SoftmaxStatistics
from fdjax.generate.structured import StructuredOutputs
from fdjax.serve.apart.wire import Column
from fdjax.serve.tickets import Submission

_KINDS: dict[str, type[AnyParams]] = {
    kind.__name__: kind for kind in (SamplingParams, BeamSearchParams, PoolingParams)
}
_REFUSALS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        errors.RequestError,
        errors.QuotaError,
        errors.QueueFullError,
        errors.EngineDeadError,
    )
}


def params_told(params: AnyParams) -> dict[str, Any]:
    """Parameters as JSON: those that are not what they are by default."""
    told: dict[str, Any] = {"kind": type(params).__name__}
    for one in dataclasses.fields(params):
        value = getattr(params, one.name)
        if value == one.default:
            continue
        if isinstance(value, StructuredOutputs):
            value = dataclasses.asdict(value)
        elif one.name == "logit_bias":  # JSON has no numbers for names
            value = [*value.items()]
        told[one.name] = value
    return told


def params_heard(told: dict[str, Any]) -> AnyParams:
    """What `params_told` was given, checked again."""
    fields = dict(told)
    kind = _KINDS[fields.pop("kind")]
    if "structured_outputs" in fields:
        form = StructuredOutputs(**fields["structured_outputs"])
        fields["structured_outputs"] = form
    if "logit_bias" in fields:
        fields["logit_bias"] = dict(fields["logit_bias"])
    return kind(**fields)


def origin_told(origin: Origin) -> dict[str, Any]:
    """An origin as JSON."""
    return {**vars(origin), "salt": origin.salt.hex()}


def origin_heard(told: dict[str, Any]) -> Origin:
    """What `origin_told` was given."""
    fields: dict[str, Any] = {**told, "salt": bytes.fromhex(told["salt"])}
    return Origin(**fields)


def prompts_told(submissions: Sequence[Submission]) -> "tuple[Any, list[array[int]]]":
    """Prompts of one request, as JSON and columns: their places and token ids.

    Ids that no column holds go as JSON: it is for the engine to refuse them.
    """
    told: list[Any] = []
    columns: list[array[int]] = []
    for submission in submissions:
        try:
            columns.append(array("q", submission.prompt))
            told.append([submission.index, None])
        except OverflowError:
            columns.append(array("q"))
            told.append([submission.index, list(submission.prompt)])
    return told, columns


def submissions_heard(
    told: Any, columns: Sequence[Column], params: AnyParams
) -> list[Submission]:
    """What `prompts_told` was given.

    Args:
        told: as JSON has it.
        columns: token ids.
        params: of all.
    """
    return [
        Submission(index, cast("list[int]", ids or column.tolist()), params)
        for (index, ids), column in zip(told, columns, strict=True)
    ]


def requests_of(submission: Submission, max_tokens: int) -> list[Request]:
    """The requests of a prompt's samples, as the engine has checked them.

    Args:
        submission: as it went to the engine.
        max_tokens: longest output, as the engine says.
    """
    params, *others = submission.samples
    request = Request(
        submission.index,
        tuple(submission.prompt),
        params if isinstance(params, SamplingParams) else params.sampling,
        max_tokens,
        beams=params if isinstance(params, BeamSearchParams) else None,
        pooling=params if isinstance(params, PoolingParams) else None,
    )
    samples = (one for one in others if isinstance(one, SamplingParams))
    return [request, *map(request.sampled, samples)]


def is_refusal(error: BaseException) -> bool:
    """It is for whoever asked, who gets the same."""
    return type(error).__name__ in _REFUSALS


def error_told(error: BaseException) -> list[str]:
    """An error by its class and its words."""
    return [type(error).__name__, str(error)]


def error_heard(told: list[str]) -> Exception:
    """The same error; of one that is no refusal, only the words."""
    name, text = told
    kind = _REFUSALS.get(name)
    return RuntimeError(f"{name}: {text}") if kind is None else kind(text)


def waiting_told(waiting: Waiting) -> dict[str, Any]:
    """What waits, as JSON."""
    tenants = {name: _load(load) for name, load in waiting.tenants.items()}
    return {"load": _load(waiting.load), "tenants": tenants}


def waiting_heard(told: dict[str, Any]) -> Waiting:
    """What `waiting_told` was given."""
    tenants = {name: Load(*load) for name, load in told["tenants"].items()}
    return Waiting(Load(*told["load"]), tenants)


def statistics_told(statistics: EngineStatistics) -> dict[str, Any]:
    """A look at an engine, as JSON."""
    return {**vars(statistics), "softmax": vars(statistics.softmax)}


def statistics_heard(told: dict[str, Any]) -> EngineStatistics:
    """What `statistics_told` was given."""
    softmax = told["softmax"]
    counts = SoftmaxStatistics(softmax["query_heads"], tuple(softmax["recomputed"]))
    tenants = {name: tuple(both) for name, both in told["tenants"].items()}
    fields: dict[str, Any] = {**told, "softmax": counts, "tenants": tenants}
    return EngineStatistics(**fields)


def _load(load: Load) -> tuple[int, int, int]:
    return load.requests, load.samples, load.tokens
