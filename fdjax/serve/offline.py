"""Prompts of one call of `LLM`: checked, and made outputs as their tokens come."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral

from fdjax.engine.engine import Engine
from fdjax.engine.matcher import Grammar
from fdjax.engine.request import Found, Increment, Request
from fdjax.engine.runs import Runs
from fdjax.engine.sequence import EngineSequence
from fdjax.errors import RequestError
from fdjax.generate.any_params import by_kind, num_outputs
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.params import SamplingParams
from fdjax.generate.pooling_params import PoolingParams
from fdjax.serve.bad_words import in_tokens
from fdjax.serve.beam_search import BeamSearchOutput, OnBest, search
from fdjax.serve.beam_texts import judging
from fdjax.serve.detokenizer import Detokenizer
from fdjax.serve.embedding import EmbeddingOutput, embedded
from fdjax.serve.grammars import Grammars
from fdjax.serve.outputs import Chunk, Completion, Output
from fdjax.serve.prompts import Prompt, plain, text_of, token_ids_of
from fdjax.serve.tokenizer import Tokenizer


@dataclass(frozen=True)
class Sample:
    """A sample of a prompt on its way, or an output of a search.

    Attributes:
        request: as the engine takes it; all outputs of a search have one.
        detokenizer: what makes chunks of its increments.
        completion: what these add up to.
        output: of its prompt.
    """

    request: Request
    detokenizer: Detokenizer
    completion: Completion
    output: Output

    def add(self, sequence: EngineSequence, chunk: Chunk) -> None:
        """Takes in new tokens."""
        self.completion.add(chunk)
        self.output.metrics.add(len(chunk.token_ids), scheduled_ts=sequence.admitted_s)
        if chunk.prompt_logprobs is not None:
            self.output.prompt_logprobs = chunk.prompt_logprobs
        if self.output.num_cached_tokens is None:
            self.output.num_cached_tokens = sequence.num_cached


class Offline:
    """Runs prompts to their ends, for whoever waits for them.

    Args:
        engine: stepped by nothing else.
        grammars: makes those of structured outputs.
    """

    def __init__(self, engine: Engine, grammars: Grammars) -> None:
        self._engine = engine
        self._grammars = grammars
        self._runs = Runs(engine)
        self._ids = itertools.count()

    def prepare(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams],
        tokenizer: Tokenizer | None,
    ) -> list[Sample]:
        """All samples of the first prompt, then those of the next.

        Args:
            prompts: as `LLM.generate` takes them.
            sampling_params: for all, or one each.
            tokenizer: of the model; without one there is no text.

        Raises:
            RequestError: a prompt or parameter cannot be served.
        """
        many = as_list(prompts)
        params = _per_prompt(SamplingParams, sampling_params, len(many))
        grammar_of = functools.lru_cache(maxsize=1)(self._grammars.compile)
        bad_words = functools.lru_cache(maxsize=1)(in_tokens)
        samples: list[Sample] = []
        for index, (given, asked) in enumerate(zip(many, params, strict=True)):
            one = bad_words(by_kind(asked), tokenizer)
            each = one.samples()
            request = self._request(index, given, each[0], tokenizer, grammar_of)
            samples += self._samples(_each(request, each), text_of(given), tokenizer)
        return samples

    def run(self, samples: Sequence[Sample]) -> Iterator[Chunk]:
        """Chunks of all samples as they come; their outputs grow with them."""
        prompts = itertools.groupby(samples, lambda sample: sample.output.index)
        shares = [_per_sequence([*of_prompt]) for _, of_prompt in prompts]
        sequences = self._runs.add_samples(
            [[first.request for first, *_ in of_prompt] for of_prompt in shares]
        )
        samples_of = dict(zip(sequences, itertools.chain(*shares), strict=True))
        for sequence, increment in self._runs.follow(sequences):
            for sample, part in _shared(increment, samples_of[sequence]):
                if sample.detokenizer.ended:  # made before the engine knew
                    continue
                chunk = sample.detokenizer.chunk(part)
                if sample.detokenizer.ended:
                    self._engine.abort(sequence)  # it knows nothing of a stop string
                sample.add(sequence, chunk)
                yield dataclasses.replace(chunk, finished=sample.output.finished)

    def search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams | Sequence[BeamSearchParams],
        tokenizer: Tokenizer | None,
        on_best: OnBest | None = None,
    ) -> list[BeamSearchOutput]:
        """See `LLM.beam_search`."""
        many, outputs = as_list(prompts), list[BeamSearchOutput]()
        each = _per_prompt(BeamSearchParams, params, len(many), "params")
        requests = list[Request]()
        grammar_of = functools.lru_cache(maxsize=1)(self._grammars.compile)
        for index, (given, asked) in enumerate(zip(many, each, strict=True)):
            one = in_tokens(asked, tokenizer)
            one = dataclasses.replace(one, stream_best=on_best is not None)
            request = self._request(index, given, one, tokenizer, grammar_of)
            requests.append(request)
            outputs.append(BeamSearchOutput(index, text_of(given), request.prompt))
        search(self._runs, tokenizer, requests, outputs, on_best)
        return outputs

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: PoolingParams | Sequence[PoolingParams],
        tokenizer: Tokenizer | None,
    ) -> tuple[int, Iterator[EmbeddingOutput]]:
        """How many there are, and outputs as they come; see `LLM.embed`."""
        many, requests = as_list(prompts), list[Request]()
        each = _per_prompt(PoolingParams, params, len(many), "pooling_params")
        for index, (given, one) in enumerate(zip(many, each, strict=True)):
            token_ids = token_ids_of(plain(given, index), index, tokenizer)
            requests.append(self._engine.request(index, token_ids, one))
        texts = [text_of(given) for given in many]
        return len(many), embedded(self._runs, requests, texts)

    def _request(
        self,
        index: int,
        given: Prompt,
        params: SamplingParams | BeamSearchParams,
        tokenizer: Tokenizer | None,
        grammar_of: Callable[[SamplingParams], Grammar | None],
    ) -> Request:
        """That of a prompt's first sample, or of its search."""
        token_ids, grammar = token_ids_of(plain(given, index), index, tokenizer), None
        common = params.sampling if isinstance(params, BeamSearchParams) else params
        if common.structured_outputs is not None:
            grammar = grammar_of(common)
        if isinstance(params, BeamSearchParams):
            grammar = judging(tokenizer, token_ids, params, grammar)
        return self._engine.request(index, token_ids, params, grammar)

    def _samples(
        self, requests: Sequence[Request], text: str | None, tokenizer: Tokenizer | None
    ) -> list[Sample]:
        """Those of one prompt, whose text is `None` where it was given as ids."""
        first, request_id = requests[0], str(next(self._ids))
        output = Output(first.index, text, first.prompt, [], request_id=request_id)
        samples: list[Sample] = []
        for sample, request in enumerate(requests):
            completion = Completion(
                sample,
                text=None if tokenizer is None else "",
                logprobs=None if request.params.logprobs is None else [],
            )
            detokenizer = Detokenizer(
                tokenizer, request, sample=sample, request_id=request_id
            )
            output.outputs.append(completion)
            samples.append(Sample(request, detokenizer, completion, output))
        return samples


def _each(
    request: Request, samples: Sequence[SamplingParams] | Sequence[BeamSearchParams]
) -> list[Request]:
    """The request of each output of a prompt, of which that of the first is there."""
    first, *others = samples
    if isinstance(first, BeamSearchParams):
        return [request] * num_outputs(first)
    drawn = (one for one in others if isinstance(one, SamplingParams))
    return [request, *map(request.sampled, drawn)]


def _per_sequence(samples: Sequence[Sample]) -> list[Sequence[Sample]]:
    """Samples of a prompt by the engine's sequences: those of a search have one."""
    if samples[0].request.beams is not None:
        return [samples]
    return [[sample] for sample in samples]


def _shared(
    increment: Increment, samples: Sequence[Sample]
) -> Iterator[tuple[Sample, Increment]]:
    """What has come, to whom: the outputs of a search go to one each."""
    parts = [increment]
    if isinstance(increment, Found):
        parts = increment.shared(len(samples))
    return zip(samples, parts, strict=True)


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Prompts of a call, where there may be only one."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    many = list(prompts)
    if many and all(isinstance(entry, Integral) for entry in many):
        return [many]  # pyright: ignore[reportReturnType]  (a list of ints by the test)
    return many  # pyright: ignore[reportReturnType]  (not all ints by the test)


def _per_prompt[P](
    kind: type[P], params: P | Sequence[P], count: int, name: str = "sampling_params"
) -> list[P]:
    """Parameters of each prompt, all of one kind, whatever the caller's types say."""
    each: list[object] = [*params] if isinstance(params, Sequence) else [params] * count
    known = [one for one in each if isinstance(one, kind)]
    if len(known) < len(each):
        wrong = next(one for one in each if not isinstance(one, kind))
        raise RequestError(
            f"{name} has {type(wrong).__name__} where {kind.__name__} should be: "
            "LLM.generate takes SamplingParams (beam_search is one of them), "
            "LLM.beam_search BeamSearchParams, and LLM.embed PoolingParams"
        )
    if len(known) != count:
        raise RequestError(
            f"{count} prompts but {len(known)} {name}; give one for all, or one each"
        )
    return known
