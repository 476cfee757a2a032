"""Options that commands share, as dataclasses whose fields are the options."""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fdjax.cli.choices import one_of
from fdjax.cli.errors import in_options, options_of
from fdjax.errors import RequestError

if TYPE_CHECKING:
    from fdjax.kernels.decode_attention.unified import UnifiedMax

SHIPPED = "tales-5m"

_MODEL = "Model and memory"
_SAMPLING = "Sampling"

Dtype = Literal["auto", "bfloat16", "float16", "float32", "half", "float"]

DebugOption = Annotated[
    bool, typer.Option("--debug", help="Show tracebacks and what libraries warn of.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Write JSON to stdout, and nothing else.")
]
DtypeOption = Annotated[
    Dtype,
    typer.Option(
        help="Type of weights and KV; auto is the checkpoint's on a GPU, float32 on "
        "a CPU.",
        rich_help_panel=_MODEL,
        **one_of(Dtype),
    ),
]
MaxModelLenOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Longest sequence, prompt and output, in tokens.",
        rich_help_panel=_MODEL,
    ),
]
MaxNumSeqsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Most sequences that run together; each sample counts.",
        rich_help_panel=_MODEL,
    ),
]
MemoryFractionOption = Annotated[
    float,
    typer.Option(
        "--memory-fraction",
        "--gpu-memory-utilization",  # vLLM's word
        min=0.01,
        max=0.99,
        help="Share of the device's memory to use.",
        rich_help_panel=_MODEL,
    ),
]
RevisionOption = Annotated[
    str | None,
    typer.Option(help="Branch, tag or commit of a hub id.", rich_help_panel=_MODEL),
]
ModelArgument = Annotated[
    str | None, typer.Argument(metavar="[MODEL]", help="The same as --model.")
]


@dataclass(frozen=True)
class ModelOptions:
    """Which model, and how it is loaded."""

    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="A folder, a hub id such as Qwen/Qwen3-8B, or the model inside the "
            "package.",
            rich_help_panel=_MODEL,
        ),
    ] = SHIPPED
    dtype: DtypeOption = "auto"
    max_model_len: MaxModelLenOption = None
    max_num_seqs: MaxNumSeqsOption = None
    memory_fraction: MemoryFractionOption = 0.9
    random_weights: Annotated[
        bool,
        typer.Option(
            "--random-weights",
            help="Make the weights up; --model may then be a lone config.json.",
            rich_help_panel=_MODEL,
        ),
    ] = False
    revision: RevisionOption = None
    softmax: Annotated[
        str,
        typer.Option(
            help="Of decoding: auto, synchronised, a file of `fdjax calibrate`, or the "
            "unified maximum as PHI,LOW,HIGH.",
            rich_help_panel=_MODEL,
        ),
    ] = "auto"
    batch_invariant: Annotated[
        bool,
        typer.Option(
            "--batch-invariant",
            help="The same log-probabilities, bit for bit, whatever else runs; on a "
            "CPU.",
            rich_help_panel=_MODEL,
        ),
    ] = False

    def named(self, argument: str | None) -> "ModelOptions":
        """With the model that stands alone on the command line, if one does.

        Raises:
            typer.BadParameter: `--model` names another.
        """
        if argument is None:
            return self
        if self.model not in (SHIPPED, argument):
            raise typer.BadParameter(
                f"the model is {argument!r}, and --model says {self.model!r}; name one"
            )
        return dataclasses.replace(self, model=argument)

    def settings(self) -> dict[str, Any]:
        """The keyword arguments of `fdjax.LLM`, without the model.

        Raises:
            typer.BadParameter: the softmax has numbers that are out of range.
        """
        fields = dataclasses.asdict(self)
        del fields["model"]
        return fields | {"softmax": _softmax(self.softmax)}


def _softmax(given: str) -> "str | UnifiedMax":
    from fdjax.kernels.decode_attention.unified import UnifiedMax

    try:
        return UnifiedMax.read(given) or given
    except ValueError as error:
        raise typer.BadParameter(in_options(error)) from None


def _sampling(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=_SAMPLING)


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are chosen; `None` leaves it to the model."""

    temperature: Annotated[
        float | None, _sampling("Higher is more varied; 0 takes the likeliest token.")
    ] = None
    top_p: Annotated[
        float | None, _sampling("Draw from the tokens that reach this probability.")
    ] = None
    top_k: Annotated[
        int | None, _sampling("Draw from this many of the likeliest tokens; 0: all.")
    ] = None
    min_p: Annotated[
        float | None, _sampling("Drop tokens this much less likely than the first.")
    ] = None
    repetition_penalty: Annotated[
        float | None, _sampling("Above 1 makes tokens seen before less likely.")
    ] = None
    presence_penalty: Annotated[
        float | None, _sampling("Subtracted from tokens of the output.")
    ] = None
    frequency_penalty: Annotated[
        float | None, _sampling("Subtracted from tokens, for each time they came.")
    ] = None
    seed: Annotated[
        int | None,
        _sampling("Makes the draws repeatable; prompt i draws with seed + i."),
    ] = None
    min_tokens: Annotated[
        int | None, _sampling("Tokens before which nothing ends the output.")
    ] = None
    stop_token_ids: Annotated[
        list[int] | None,
        _sampling("A token that ends the output; may be repeated.", "--stop-token-ids"),
    ] = None
    ignore_eos: Annotated[
        bool, _sampling("The model's end token does not end it.", "--ignore-eos")
    ] = False

    def given(self, **others: Any) -> dict[str, Any]:
        """What was asked for, as arguments of `SamplingParams`.

        Args:
            others: more arguments, `None` where not given.

        Raises:
            typer.BadParameter: a value is out of range.
        """
        from fdjax.generate.params import SamplingParams

        fields = dataclasses.asdict(self) | others
        chosen = {name: value for name, value in fields.items() if value is not None}
        try:
            SamplingParams(**chosen)
        except RequestError as error:
            raise typer.BadParameter(in_options(error)) from None
        return chosen


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Lets a command take options dataclasses: typer sees their fields instead."""
    hints = typing.get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {
        name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)
    }

    @functools.wraps(function)
    def expanded(**arguments: Any) -> None:
        options = [*arguments]
        for name, group in groups.items():
            names = [field.name for field in dataclasses.fields(group)]
            arguments[name] = group(**{n: arguments.pop(n) for n in names})
        with options_of(options):
            function(**arguments)

    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in groups:
            parameters += _fields(groups[name])
        else:
            parameters.append(_option(name, parameter.default, hints[name]))
    annotations = {parameter.name: parameter.annotation for parameter in parameters}
    expanded.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]  (inspect reads it)
    expanded.__annotations__ = annotations
    return expanded


def _fields(group: Any) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(group, include_extras=True)
    return [
        _option(field.name, _default(field), hints[field.name])
        for field in dataclasses.fields(group)
    ]


def _default(field: "dataclasses.Field[Any]") -> Any:
    missing = field.default is dataclasses.MISSING
    return inspect.Parameter.empty if missing else field.default


def _option(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
