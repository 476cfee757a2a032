"""`fdjax generate`: continues prompts."""

import json
import pathlib
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fdjax.cli import progress
from fdjax.cli.beams import BeamOptions, write_beams
from fdjax.cli.errors import FAILED, reported, show_error
from fdjax.cli.loading import keep_programs, load, sampling_defaults
from fdjax.cli.options import (
    DebugOption,
    JsonOption,
    ModelOptions,
    SamplingOptions,
    command,
)
from fdjax.cli.prompts import gather
from fdjax.cli.results import Continuation, Stopwatch, empty_results
from fdjax.cli.writer import TextWriter, emit

if TYPE_CHECKING:
    from fdjax.generate.params import SamplingParams
    from fdjax.serve.llm import LLM
    from fdjax.serve.outputs import Chunk

MAX_TOKENS = 160


@command
def generate(
    prompts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PROMPT]...", help="Texts; - reads one from stdin."),
    ] = None,
    *,
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", "-p", help="A text; may be repeated."),
    ] = None,
    prompt_file: Annotated[
        pathlib.Path | None,
        typer.Option(
            exists=True, dir_okay=False, readable=True, help="One prompt a line."
        ),
    ] = None,
    prompt_ids: Annotated[
        list[str] | None,
        typer.Option(help="A prompt as token ids, 1,2,3; may be repeated."),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(help="Longest output, in tokens.")
    ] = MAX_TOKENS,
    logprobs: Annotated[
        int | None,
        typer.Option(help="With --json: log-probabilities, and of so many others."),
    ] = None,
    model: ModelOptions,
    sampling: SamplingOptions,
    search: BeamOptions,
    json_lines: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Continue prompts, streaming the text.

    Without --model, a small model inside the package tells a tale.
    """
    with reported(debug=debug):
        texts = [*(prompts or []), *(prompt or [])]
        all_prompts = gather(texts, prompt_file, prompt_ids or [])
        given = sampling.given(max_tokens=max_tokens, logprobs=logprobs)
        beams = search.params(given)
        started = time.perf_counter()
        keep_programs()
        llm = load(model, **search.settings())
        if beams is not None:
            write_beams(
                llm,
                all_prompts,
                beams,
                json_lines=json_lines,
                show_best=search.show_best,
            )
            return
        params = _params(llm, model, given, len(all_prompts))
        seeds = [one.seed or 0 for one in params]
        watch = Stopwatch(time.perf_counter() - started)
        chunks = watch.watch(llm.stream(all_prompts, params))
        results = empty_results(llm, all_prompts, seeds)
        if json_lines:
            _write_json(results, chunks, watch, total=max_tokens * len(params))
        else:
            _write_text(results, chunks, watch)
        progress.note(_closing_line(watch, seeds))
        _tell_failures(results)


def _params(
    llm: "LLM", model: ModelOptions, given: dict[str, Any], count: int
) -> "list[SamplingParams]":
    from fdjax.generate.params import SamplingParams

    chosen = sampling_defaults(llm.folder, model) | given
    seed = chosen.pop("seed", None)
    first = secrets.randbits(31) if seed is None else seed
    return [SamplingParams(**chosen, seed=first + i) for i in range(count)]


def _write_text(
    results: Sequence[Continuation], chunks: "Iterator[Chunk]", watch: Stopwatch
) -> None:
    writer = TextWriter(results)
    try:
        with progress.Waiting("compiling") as waiting:
            for chunk in chunks:
                results[chunk.index].add(chunk)
                # The first token alone, and then seconds of silence, read badly.
                if watch.is_steady or chunk.finish_reason is not None:
                    waiting.end()
                    writer.update()
        writer.update()
    finally:
        writer.close()


def _write_json(
    results: Sequence[Continuation],
    chunks: "Iterator[Chunk]",
    watch: Stopwatch,
    *,
    total: int,
) -> None:
    with progress.counting(total, "generating") as advance:
        for chunk in chunks:
            results[chunk.index].add(chunk)
            advance(len(chunk.token_ids))
    timings = watch.timings()
    for result in results:
        line = json.dumps({**result.to_json(), "timings": timings}, ensure_ascii=True)
        emit(line + "\n")


def _tell_failures(results: Sequence[Continuation]) -> None:
    errors = {result.error for result in results if result.error is not None}
    for error in sorted(errors):
        show_error(error)
    if errors:
        raise typer.Exit(FAILED)


def _closing_line(watch: Stopwatch, seeds: Sequence[int]) -> str:
    return f"[{watch.pace()}, loaded in {watch.load_s:.1f} s, seed {seeds[0]}]"
