"""`LLM`: a model ready to continue prompts, in the words vLLM's users know."""

import operator
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from fdjax import device
from fdjax.engine.engine import Engine
from fdjax.engine.request import Increment, Request
from fdjax.errors import RequestError
from fdjax.generate.checks import shown
from fdjax.generate.params import SamplingParams
from fdjax.generate.softmax_counts import SoftmaxStatistics
from fdjax.kernels.decode_attention import UnifiedMax
from fdjax.serve.outputs import Chunk, Output
from fdjax.serve.setup import Settings, build_engine
from fdjax.serve.tokenizer import load_tokenizer

type Prompt = str | Sequence[int]


@dataclass(frozen=True)
class _Prepared:
    """Checked prompts: what goes in, and where what comes out is gathered."""

    requests: list[Request]
    outputs: list[Output]
    to_text: list[Callable[[int], str] | None]


class LLM:
    """A model loaded on the default device.

    Args:
        model: a folder in the Hugging Face layout, a hub id, or the name of the model
            in the package, which is the default.
        dtype: "bfloat16", "float16", "float32" or "auto": the checkpoint's own on a
            GPU, float32 on a CPU.
        max_model_len: longest sequence, prompt and output together, in tokens; what
            the model was made for by default.
        memory_fraction: of the device's memory; takes effect on a GPU if JAX has not
            been used in this process before.
        max_num_seqs: most sequences that run together.
        page_size: tokens of a page of the KV array.
        seed: of draws of requests that bring no seed.
        random_weights: make the weights up on the device and read no file but
            `config.json` (for benchmarks); `model` may then be a `config.json`.
        revision: branch, tag or commit, for a hub id.
        hf_overrides: fields that replace those of `config.json`.
        softmax: how decoding takes the softmax. "auto": asynchronously, with a unified
            maximum, where the model's folder holds a calibration (`softmax.json`) or
            the package has one, unless the weights are made up; else synchronised.
            Or "synchronised", the path of a calibration, or a `UnifiedMax`. It changes
            speed, and results by rounding only.
        on_progress: called with bytes done, bytes in all, and a parameter's name.

    Raises:
        ConfigError: the model is not found or not supported.
        CheckpointError: its files do not hold its weights.
        MemoryBudgetError: it does not fit.
    """

    def __init__(
        self,
        model: str | pathlib.Path = "tales-5m",
        *,
        dtype: str = "auto",
        max_model_len: int | None = None,
        memory_fraction: float = 0.9,
        max_num_seqs: int | None = None,
        page_size: int = 16,
        seed: int = 0,
        random_weights: bool = False,
        revision: str | None = None,
        hf_overrides: Mapping[str, Any] | None = None,
        softmax: str | pathlib.Path | UnifiedMax = "auto",
        on_progress: Callable[[int, int, str], None] | None = None,
    ) -> None:
        device.claim_memory(memory_fraction)
        if random_weights and softmax == "auto":
            softmax = "synchronised"  # a calibration knows the model's own weights
        settings = Settings.of(
            model,
            dtype=dtype,
            max_model_len=max_model_len,
            memory_fraction=memory_fraction,
            max_num_seqs=max_num_seqs,
            page_size=page_size,
            revision=revision,
            hf_overrides=hf_overrides,
            softmax=softmax,
        )
        self.folder = settings.folder
        self.config = settings.config
        self.tokenizer = load_tokenizer(settings.folder)
        self.engine: Engine = build_engine(
            settings, seed=seed, random_weights=random_weights, on_progress=on_progress
        )

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Output]:
        """Continues prompts; returns when all have ended.

        Args:
            prompts: texts, or lists of token ids; or a single one of either.
            sampling_params: for all prompts, or one each.

        Returns:
            One output a prompt, in their order.

        Raises:
            RequestError: a prompt or parameter cannot be served; nothing has run then.
        """
        prepared = self._prepare(prompts, sampling_params)
        for _ in self._stream(prepared):
            pass
        return prepared.outputs

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[Chunk]:
        """Continues prompts; yields new tokens every few steps.

        Args and errors are those of `generate`; errors are raised by this call, not
        by the first `next`.
        """
        return self._stream(self._prepare(prompts, sampling_params))

    def softmax_statistics(self) -> SoftmaxStatistics:
        """How many query heads decoding has computed again, by layer, since the start.

        Those whose largest score left the bounds of the unified maximum,
        `config.unified`; zeros with the synchronised softmax. The counts stay on the
        device until this is called; it waits for the steps that are under way.
        """
        return self.engine.softmax_statistics()

    def _prepare(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> _Prepared:
        many = _as_list(prompts)
        params = _per_prompt(sampling_params, len(many))
        prepared = _Prepared([], [], [])
        for index, (prompt, one) in enumerate(zip(many, params, strict=True)):
            if isinstance(prompt, str):
                text, token_ids = prompt, self._encode(prompt, index)
            else:
                text, token_ids = None, _token_ids(prompt, index)
            request = self.engine.request(index, token_ids, one)
            output = Output(index, text, request.prompt)
            if one.logprobs is not None:
                output.logprobs = []
            if self.tokenizer is not None:
                output.text = ""
            prepared.requests.append(request)
            prepared.outputs.append(output)
            prepared.to_text.append(self._to_text(request))
        return prepared

    def _to_text(self, request: Request) -> Callable[[int], str] | None:
        if self.tokenizer is None:
            return None
        return self.tokenizer.stream(request.prompt)

    def _encode(self, text: str, index: int) -> list[int]:
        if self.tokenizer is None:
            raise RequestError(
                f"prompt {index} is text, but {self.folder} has no tokenizer; give "
                "token ids"
            )
        return self.tokenizer.encode(text)

    def _stream(self, prepared: _Prepared) -> Iterator[Chunk]:
        for increment in self.engine.run(prepared.requests):
            to_text = prepared.to_text[increment.index]
            yield _extend(prepared.outputs[increment.index], increment, to_text)


def _extend(
    output: Output, increment: Increment, to_text: Callable[[int], str] | None
) -> Chunk:
    """Adds an increment to its output."""
    text = None
    if to_text is not None and output.text is not None:
        text = "".join(map(to_text, increment.token_ids))
        output.text += text
    output.token_ids += increment.token_ids
    if output.logprobs is not None and increment.logprobs is not None:
        output.logprobs += increment.logprobs
    reason = increment.finish_reason
    output.finish_reason = None if reason is None else reason.text
    return Chunk(
        index=output.index,
        token_ids=increment.token_ids,
        text=text,
        finish_reason=output.finish_reason,
        logprobs=increment.logprobs,
    )


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    many = list(prompts)
    if many and all(isinstance(entry, Integral) for entry in many):
        return [many]  # pyright: ignore[reportReturnType]  (a list of ints by the test)
    return many  # pyright: ignore[reportReturnType]  (not all ints by the test)


def _token_ids(prompt: object, index: int) -> list[int]:
    """Python integers: NumPy's would not survive on their way to JSON."""
    try:
        return [operator.index(token) for token in prompt]  # pyright: ignore[reportGeneralTypeIssues]  (what cannot be iterated raises TypeError)
    except TypeError:
        raise RequestError(
            f"prompt {index} is {shown(prompt)}; give a text or a sequence of token ids"
        ) from None


def _per_prompt(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise RequestError(
            f"{count} prompts but {len(params)} sampling_params; give one for all, or "
            "one each"
        )
    return list(params)
