"""`LLM`: a model ready to continue prompts, in the words vLLM's users know."""

import contextlib
import inspect
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fdjax import device
from fdjax.engine.limits import Limit, QueueLimits
from fdjax.engine.policy import PrefillOrder, StepPolicy
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.params import SamplingParams
from fdjax.kernels.decode_attention import UnifiedMax
from fdjax.serve import compilation_cache
from fdjax.serve.beam_search import BeamSearchOutput, BeamSequence
from fdjax.serve.chats import Chat, Chats
from fdjax.serve.generation_config import default_sampling
from fdjax.serve.loading import load_model
from fdjax.serve.offline import Sample
from fdjax.serve.outputs import Chunk, Output
from fdjax.serve.progress import generating
from fdjax.serve.prompts import Prompt
from fdjax.serve.setup import MAX_BEAM_WIDTH, Settings
from fdjax.serve.vectors import Vectors
from fdjax.serve.vllm_words import in_our_words


class LLM(Vectors):
    """A model loaded on the default device.

    Where `fdjax.LLM` is named before JAX is imported, XLA's warnings are left out,
    unless `TF_CPP_MIN_LOG_LEVEL` is set: among them is one of hundreds of GiB that it
    "can't reduce", which nothing allocates. JAX reads the level when it is imported.

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
        max_beam_width: beams of a search, up to 512; each counts as a sequence.
        max_num_beams: of all searches that run, up to `max_num_seqs`, which is the
            default; "auto" leaves an eighth to others, as `fdjax serve` does.
        max_num_batched_tokens: most tokens of one step: of prompts, and one of each
            sequence that decodes.
        max_itl_ms: milliseconds that what a step computes of prompts should not exceed
            while sequences make tokens, so that these come no further apart; see
            `StepPolicy`, as for the next two.
        prefill_order: of prompts, "fcfs", or "shortest": the fewest tokens left first.
        mixed_steps: prompts and decoding share steps; else they take turns.
        shared_prefix_reads: in steps that decode, pages that sequences share are read
            once for all of them; by default where a GPU has kernels for it, and never
            with `batch_invariant`, beside which `True` is refused.
        page_size: tokens of a page of the KV array.
        enable_prefix_caching: keys and values of earlier requests are used again where
            a prompt begins with the same tokens.
        seed: of draws of requests that bring no seed.
        random_weights: make the weights up on the device and read no file but
            `config.json` (for benchmarks); `model` may then be a `config.json`.
        revision: branch, tag or commit, for a hub id; refused for other models.
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
        generation_config: "auto": requests without `SamplingParams` are sampled as the
            model's `generation_config.json` recommends; "vllm": by the defaults.
        override_generation_config: what replaces these recommendations.
        on_progress: called with bytes done, bytes in all, and a parameter's name.
        on_programs: where it is given, every program is compiled, too, as by `warm_up`,
            and what can be of that is done while weights are loaded; called with
            programs done, and programs in all.
        vllm: other words of vLLM: `gpu_memory_utilization` is `memory_fraction`,
            `block_size` is `page_size`; of most of the rest only the value that changes
            nothing is taken (`fdjax.serve.vllm_words`).

    Raises:
        ConfigError: the model is not found or not supported, or an option is not
            supported here.
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
        max_beam_width: int = MAX_BEAM_WIDTH,
        max_num_beams: Limit = None,
        max_num_batched_tokens: int | None = None,
        max_itl_ms: float | None = None,
        prefill_order: PrefillOrder = StepPolicy.prefill_order,
        mixed_steps: bool = True,
        shared_prefix_reads: bool | None = None,
        page_size: int = 16,
        enable_prefix_caching: bool = True,
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
        generation_config: str = "auto",
        override_generation_config: Mapping[str, Any] | None = None,
        on_progress: Callable[[int, int, str], None] | None = None,
        on_programs: Callable[[int, int], None] | None = None,
        **vllm: Any,
    ) -> None:
        own = {"memory_fraction": memory_fraction, "page_size": page_size}
        own |= {"random_weights": random_weights}
        own = in_our_words(vllm, own, inspect.signature(LLM).parameters)
        memory_fraction, page_size = own["memory_fraction"], own["page_size"]
        random_weights = own["random_weights"]
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
            max_beam_width=max_beam_width,
            max_num_beams=max_num_beams,
            max_num_batched_tokens=max_num_batched_tokens,
            page_size=page_size,
            revision=revision,
            hf_overrides=hf_overrides,
            softmax=softmax,
            batch_invariant=batch_invariant,
            policy=StepPolicy(
                mixed_steps, max_itl_ms, prefill_order, shared_prefix_reads
            ),
        )
        limits = QueueLimits.of(
            max_num_seqs=settings.max_num_seqs,
            max_model_len=settings.max_model_len,
            requests=max_queued_requests,
            samples=max_queued_samples,
            tokens=max_queued_tokens,
        )
        sampling = default_sampling(
            settings.folder, generation_config, override_generation_config
        )
        loaded = load_model(
            settings,
            seed=seed,
            random_weights=random_weights,
            prefix_caching=enable_prefix_caching,
            limits=limits,
            on_progress=on_progress,
            on_programs=on_programs,
        )
        super().__init__(loaded, sampling)
        self._chats = Chats(settings.folder, self.tokenizer)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
        use_tqdm: bool | None = None,
    ) -> list[Output]:
        """Continues prompts; returns when all have ended.

        Args:
            prompts: texts or lists of token ids, also as `{"prompt": ...}` and
                `{"prompt_token_ids": ...}`; or a single one of any.
            sampling_params: for all prompts, or one each, of draws or a `beam_search`;
                by default `get_default_sampling_params`.
            progress: shows a bar on stderr, if that is a terminal.
            use_tqdm: vLLM's word for `progress`, which it replaces.

        Returns:
            One output a prompt, in their order.

        Raises:
            RequestError: a prompt or parameter cannot be served; nothing has run then.
            QueueFullError: more prompts than may wait.
        """
        samples = self._prepare(prompts, sampling_params)
        shown = progress if use_tqdm is None else use_tqdm
        with generating(len(samples)) if shown else contextlib.nullcontext() as report:
            for chunk in self._offline.run(samples):
                if report is not None:
                    report(len(chunk.token_ids), chunk.finish_reason is not None)
        return [sample.output for sample in samples if not sample.completion.index]

    def chat(
        self,
        messages: Chat | Sequence[Chat],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        progress: bool = False,
        use_tqdm: bool | None = None,
    ) -> list[Output]:
        """Answers chats; returns when all answers have ended.

        Args:
            messages: of one chat or of several, each `{"role": ..., "content": ...}`.
                The model's template makes prompts of them; without one, the messages
                stand one after another. Assistants' may have `tool_calls`, and those
                of the role `tool` a `tool_call_id`.
            sampling_params: see `generate`.
            tools: that the template tells the model of, as OpenAI's API describes
                them. Calls are text, as the model writes them.
            chat_template_kwargs: more that the template may look at.
            add_generation_prompt: an answer begins behind the last message; by default,
                unless that one goes on.
            continue_final_message: it does; it is a text of the assistant's.
            progress: see `generate`.
            use_tqdm: see above.

        Returns:
            One output a chat, in their order.

        Raises:
            RequestError: the template refuses the messages; else see `generate`.
        """
        prompts = self._chats.prompts(
            messages,
            tools,
            chat_template_kwargs,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        shown = progress if use_tqdm is None else use_tqdm
        return self.generate(prompts, sampling_params, progress=shown)

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[Chunk]:
        """Continues prompts; yields new tokens every few steps.

        Args and errors are those of `generate`. What is wrong with a request is raised
        by this call; that the queue is full, by the first `next`, which queues them.
        """
        return self._offline.run(self._prepare(prompts, sampling_params))

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams | Sequence[BeamSearchParams],
        *,
        on_best: Callable[[int, BeamSequence], None] | None = None,
    ) -> list[BeamSearchOutput]:
        """Searches for the most likely continuations; returns when all have ended.

        Args:
            prompts: as for `generate`.
            params: for all prompts, or one each.
            on_best: told, as the searches go on, the place of a prompt and the best
                output so far, which may never be one: the next replaces it.

        Returns:
            One output a prompt, in their order.

        Raises:
            RequestError: a prompt or parameter cannot be served; nothing has run then.
            QueueFullError: more prompts than may wait.
        """
        return self._offline.search(prompts, params, self.tokenizer, on_best)

    def _prepare(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[Sample]:
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        return self._offline.prepare(prompts, sampling_params, self.tokenizer)
