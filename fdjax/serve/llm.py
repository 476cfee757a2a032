"""`LLM`: a model ready to continue prompts, in the words vLLM's users know."""

import contextlib
import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from fdjax import device
from fdjax.engine.engine import Engine
from fdjax.engine.limits import Limit, QueueLimits
from fdjax.engine.request import Request
from fdjax.engine.runs import Runs
from fdjax.errors import RequestError
from fdjax.generate.params import SamplingParams
from fdjax.generate.softmax_counts import SoftmaxStatistics
from fdjax.kernels.decode_attention import UnifiedMax
from fdjax.serve import compilation_cache
from fdjax.serve.detokenizer import Detokenizer
from fdjax.serve.grammars import Grammars
from fdjax.serve.outputs import Chunk, Completion, Output
from fdjax.serve.progress import compiling, generating
from fdjax.serve.prompts import Prompt, plain, token_ids_of
from fdjax.serve.setup import Settings, build_engine
from fdjax.serve.tokenizer import load_tokenizer


@dataclass(frozen=True)
class _Prepared:
    """Checked prompts: what goes in, and where what comes out is gathered.

    Attributes:
        outputs: one a prompt.
        requests: one a sample of a prompt, as the next two.
        completions: those of `outputs`.
        detokenizers: what makes chunks of increments.
    """

    outputs: list[Output]
    requests: list[Request]
    completions: list[Completion]
    detokenizers: list[Detokenizer]


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
        batch_invariant: log-probabilities have the same bits whether a request runs
            alone, with others, in chunks, behind a cached prefix or after it was put
            back; without it only tokens are promised to be the same. On a CPU.
        compilation_cache_dir: a folder for compiled programs, which the next process
            finds there; see `fdjax.serve.compilation_cache`. `None` leaves it to JAX's
            own settings.
        max_queued_requests: requests that may wait for a row; more are refused. `None`
            sets no limit, "auto" one for a server (`QueueLimits`). As for the next two,
            it is for an engine that serves (`AsyncLLM`).
        max_queued_samples: samples of them.
        max_queued_tokens: tokens that they may have together, at least
            `max_model_len`.
        on_progress: called with bytes done, bytes in all, and a parameter's name.

    Raises:
        ConfigError: the model is not found or not supported, or `batch_invariant` is
            not supported here.
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
        batch_invariant: bool = False,
        compilation_cache_dir: str | pathlib.Path | None = None,
        max_queued_requests: Limit = None,
        max_queued_samples: Limit = None,
        max_queued_tokens: Limit = None,
        on_progress: Callable[[int, int, str], None] | None = None,
    ) -> None:
        device.claim_memory(memory_fraction)
        if compilation_cache_dir is not None:
            compilation_cache.use(pathlib.Path(compilation_cache_dir))
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
            batch_invariant=batch_invariant,
        )
        limits = QueueLimits.of(
            max_num_seqs=settings.max_num_seqs,
            max_model_len=settings.max_model_len,
            requests=max_queued_requests,
            samples=max_queued_samples,
            tokens=max_queued_tokens,
        )
        self.folder = settings.folder
        self.config = settings.config
        self.tokenizer = load_tokenizer(settings.folder)
        self.grammars = Grammars(
            self.tokenizer,
            vocab_size=self.config.embedding.vocab_size,
            eos_token_ids=self.config.eos_token_ids,
        )
        self.engine: Engine = build_engine(
            settings,
            seed=seed,
            random_weights=random_weights,
            limits=limits,
            on_progress=on_progress,
        )
        self._runs = Runs(self.engine)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
    ) -> list[Output]:
        """Continues prompts; returns when all have ended.

        Args:
            prompts: texts or lists of token ids, also as `{"prompt": ...}` and
                `{"prompt_token_ids": ...}`; or a single one of any.
            sampling_params: for all prompts, or one each.
            progress: shows a bar on stderr, if that is a terminal.

        Returns:
            One output a prompt, in their order.

        Raises:
            RequestError: a prompt or parameter cannot be served; nothing has run then.
            QueueFullError: more prompts than may wait.
        """
        prepared = self._prepare(prompts, sampling_params)
        count = len(prepared.requests)
        with generating(count) if progress else contextlib.nullcontext() as report:
            for chunk in self._stream(prepared):
                if report is not None:
                    report(len(chunk.token_ids), chunk.finish_reason is not None)
        return prepared.outputs

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[Chunk]:
        """Continues prompts; yields new tokens every few steps.

        Args and errors are those of `generate`. What is wrong with a request is raised
        by this call; that the queue is full, by the first `next`, which queues them.
        """
        return self._stream(self._prepare(prompts, sampling_params))

    def warm_up(
        self,
        sampling_params: Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
    ) -> int:
        """Compiles every program that such requests can need, ahead of them.

        Args:
            sampling_params: what requests will ask for, together in any combination;
                anything by default.
            progress: says on stderr how many programs there are, and how many seconds
                they took; with a bar, if that is a terminal.

        Returns:
            The number of programs.
        """
        with compiling() if progress else contextlib.nullcontext() as report:
            return self.engine.warm_up(sampling_params, on_progress=report)

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
        prepared = _Prepared([], [], [], [])
        grammar_of = functools.lru_cache(maxsize=1)(self.grammars.compile)
        for index, (given, one) in enumerate(zip(many, params, strict=True)):
            prompt = plain(given, index)
            token_ids = token_ids_of(prompt, index, self.tokenizer)
            grammar = None if one.structured_outputs is None else grammar_of(one)
            requests = [
                self.engine.request(index, token_ids, sample, grammar)
                for sample in one.samples()
            ]
            text = prompt if isinstance(prompt, str) else None
            completions = [
                Completion(
                    sample,
                    text=None if self.tokenizer is None else "",
                    logprobs=None if one.logprobs is None else [],
                )
                for sample in range(one.n)
            ]
            output = Output(index, text, requests[0].prompt, completions)
            prepared.outputs.append(output)
            prepared.requests.extend(requests)
            prepared.completions.extend(completions)
            prepared.detokenizers.extend(
                Detokenizer(self.tokenizer, request, sample=sample)
                for sample, request in enumerate(requests)
            )
        return prepared

    def _stream(self, prepared: _Prepared) -> Iterator[Chunk]:
        jobs = self._runs.add(prepared.requests)
        places = {job: place for place, job in enumerate(jobs)}
        for job, increment in self._runs.follow(jobs):
            detokenizer = prepared.detokenizers[places[job]]
            if detokenizer.ended:  # made before the engine knew
                continue
            chunk = detokenizer.chunk(increment)
            if detokenizer.ended:
                self.engine.abort(job)  # a stop string, which it knows nothing of
            prepared.completions[places[job]].add(chunk)
            yield chunk


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str | Mapping):
        return [prompts]
    many = list(prompts)
    if many and all(isinstance(entry, Integral) for entry in many):
        return [many]  # pyright: ignore[reportReturnType]  (a list of ints by the test)
    return many  # pyright: ignore[reportReturnType]  (not all ints by the test)


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
