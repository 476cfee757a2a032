"""`fdjax generate`: prompts in, text or JSON out."""

import json
import pathlib
import re
from typing import Any

import pytest

from fdjax import LLM, CheckpointError, SamplingParams, __version__
from fdjax.engine.runs import Runs
from fdjax.models.source import SHIPPED
from tests.cli.conftest import Invoke

STORY = "Once upon a time"
GREEDY = ("--temperature", "0", "--max-tokens", "12")


def expected(llm: LLM, prompt: str) -> str:
    params = SamplingParams(temperature=0.0, max_tokens=12)
    return llm.generate(prompt, params)[0].text or ""


@pytest.fixture
def asked(shared: LLM, monkeypatch: pytest.MonkeyPatch) -> list[SamplingParams]:
    """The sampling parameters a command uses; nothing is generated."""
    seen: list[SamplingParams] = []

    def stream(_: object, params: list[SamplingParams]) -> Any:
        seen.extend(params)
        return iter(())

    monkeypatch.setattr(shared, "stream", stream)
    return seen


def test_a_prompt_reads_on(invoke: Invoke, shared: LLM):
    result = invoke("generate", STORY, *GREEDY)
    assert result.exit_code == 0
    assert result.stdout == f"{STORY}{expected(shared, STORY)}\n"


def test_a_closing_line_says_how_fast(invoke: Invoke, shared: LLM):
    result = invoke("generate", STORY, *GREEDY, "--seed", "3")
    first, last = (
        r"\[12 tokens, first token after \d+\.\d s",
        r"loaded in \d+\.\d s, seed 3\]",
    )
    said = f"{first}, then \\d+ tok/s, {last}"
    assert re.match(said, result.stderr), result.stderr


def test_a_prompt_by_its_name(invoke: Invoke, shared: LLM):
    result = invoke("generate", "--prompt", STORY, *GREEDY)
    assert result.stdout == f"{STORY}{expected(shared, STORY)}\n"
    both = invoke("generate", "A", "-p", STORY, *GREEDY, "--json")
    prompts = [json.loads(line)["prompt"] for line in both.stdout.splitlines()]
    assert prompts == ["A", STORY]


def test_several_prompts_stand_under_headers(invoke: Invoke, shared: LLM):
    prompts = [STORY, "The king said", "A"]
    result = invoke("generate", *prompts, *GREEDY)
    parts = [
        f"=== {place}/3 ===\n{prompt}{expected(shared, prompt)}\n"
        for place, prompt in enumerate(prompts, start=1)
    ]
    assert result.stdout == "\n".join(parts)


def test_a_prompt_from_stdin(invoke: Invoke, shared: LLM):
    result = invoke("generate", "-", *GREEDY, text=f"{STORY}\n")
    assert result.stdout == f"{STORY}{expected(shared, STORY)}\n"


def test_prompts_from_a_file(invoke: Invoke, shared: LLM, tmp_path: pathlib.Path):
    path = tmp_path / "prompts.txt"
    path.write_text(f"{STORY}\n\nThe king said\n")
    result = invoke("generate", "--prompt-file", str(path), *GREEDY, "--json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["prompt"] for line in lines] == [STORY, "The king said"]


def test_json_is_all_there_is_on_stdout(invoke: Invoke, shared: LLM):
    arguments = (STORY, "A", *GREEDY, "--json", "--logprobs", "2", "--seed", "7")
    result = invoke("generate", *arguments)
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert shared.tokenizer is not None
    assert first["prompt"] == STORY
    assert first["prompt_token_ids"] == shared.tokenizer.encode(STORY)
    assert first["text"] == expected(shared, STORY)
    assert len(first["token_ids"]) == 12
    assert first["finish_reason"] == "length"
    assert (first["seed"], second["seed"]) == (7, 8)
    assert [e["token_id"] for e in first["logprobs"]] == first["token_ids"]
    assert all(len(entry["top"]) == 2 for entry in first["logprobs"])
    timings = first["timings"]
    assert timings.keys() == {"load_s", "first_token_s", "total_s", "tokens_per_s"}
    assert 0 < timings["first_token_s"] <= timings["total_s"]


def test_prompts_as_token_ids(invoke: Invoke, shared: LLM):
    assert shared.tokenizer is not None
    ids = ",".join(map(str, shared.tokenizer.encode(STORY)))
    result = invoke("generate", "--prompt-ids", ids, *GREEDY, "--json")
    (line,) = (json.loads(line) for line in result.stdout.splitlines())
    assert line["prompt"] is None
    assert line["text"] == expected(shared, STORY)


def test_a_model_without_a_tokenizer_writes_token_ids(
    invoke: Invoke, shared: LLM, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shared, "tokenizer", None)
    result = invoke("generate", "--prompt-ids", "0,5", *GREEDY)
    assert result.exit_code == 0
    assert len([int(token) for token in result.stdout.split()]) == 12
    refused = invoke("generate", STORY, *GREEDY)
    assert refused.exit_code == 1
    assert "has no tokenizer" in refused.stderr


@pytest.mark.usefixtures("shared")
def test_a_seed_repeats_the_tale(invoke: Invoke):
    drawn = (STORY, "--max-tokens", "12")
    first, again = (invoke("generate", *drawn, "--seed", "1").stdout for _ in "ab")
    other = invoke("generate", *drawn, "--seed", "2").stdout
    assert first == again != other


def test_the_shipped_model_is_sampled_as_it_likes(
    invoke: Invoke, asked: list[SamplingParams]
):
    invoke("generate", STORY, "A")
    first, second = asked
    assert (first.temperature, first.top_k, first.max_tokens) == (0.7, 50, 160)
    assert first.seed is not None
    assert second.seed == first.seed + 1


def test_other_models_are_sampled_as_their_authors_recommend(
    invoke: Invoke,
    shared: LLM,
    asked: list[SamplingParams],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
):
    fields = {"temperature": 0.6, "top_p": 0.9, "eos_token_id": [1, 7]}
    (tmp_path / "generation_config.json").write_text(json.dumps(fields))
    monkeypatch.setattr(shared, "folder", tmp_path)
    invoke("generate", STORY, "--model", str(tmp_path), "--top-p", "0.5")
    (params,) = asked
    assert (params.temperature, params.top_p, params.top_k) == (0.6, 0.5, 0)
    assert params.stop_token_ids == (), "the model's ends are the engine's matter"


def test_every_sampling_option_arrives(invoke: Invoke, asked: list[SamplingParams]):
    options: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.8,
        "top_k": 9,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "seed": 4,
        "min_tokens": 2,
        "max_tokens": 33,
        "logprobs": 1,
    }
    flags = [
        part
        for name, value in options.items()
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    stops = ("--stop-token-ids", "5", "--stop-token-ids", "6")
    invoke("generate", STORY, *flags, *stops, "--ignore-eos")
    assert asked == [SamplingParams(**options, stop_token_ids=[5, 6], ignore_eos=True)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a prompt"),
        ([STORY, "--temperature", "-1"], "temperature is -1.0"),
        ([STORY, "--max-tokens", "0"], "--max-tokens is 0"),
        ([STORY, "--top-p", "x"], "top-p"),
        ([STORY, "--dtype", "int8"], "'int8' is none of auto, bfloat16,"),
        ([STORY, "--dtype", "fp16"], "did you mean float16?"),
        ([STORY, "--max-model-len", "0"], "max-model-len"),
        ([STORY, "--memory-fraction", "2"], "memory-fraction"),
        ([STORY, "--gpu-memory-utilization", "2"], "memory-fraction"),
        ([STORY, "--prompt-file", "/nowhere"], "prompt-file"),
        (["--prompt-ids", "1,b"], "prompt ids are"),
        (["-", "-"], "only once"),
        ([STORY, "--no-such-flag"], "no-such-flag"),
    ],
)
def test_wrong_usage_is_told_before_anything_loads(
    invoke: Invoke,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("fdjax.cli.generate.load", pytest.fail)
    result = invoke("generate", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_a_prompt_too_long_is_an_error_of_one_line(invoke: Invoke, shared: LLM):
    result = invoke("generate", "word " * 200)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: prompt 0 has ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_a_model_that_is_nowhere_is_an_error(invoke: Invoke):
    result = invoke("generate", STORY, "--model", "/nowhere/at-all")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: there is no folder '/nowhere/at-all'")


def test_brackets_in_an_error_are_text(invoke: Invoke, shared: LLM):
    result = invoke("generate", STORY, "--stop-token-ids", "5000")
    assert "--stop-token-ids names token 5000" in result.stderr


def test_debug_shows_where_it_came_from(invoke: Invoke):
    result = invoke("generate", STORY, "--model", "/nowhere/at-all", "--debug")
    assert result.exit_code == 1
    assert type(result.exception).__name__ == "ConfigError"


def test_faults_of_our_own_are_not_hidden(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
):
    def broken(_: object) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr("fdjax.cli.generate.load", broken)
    assert isinstance(invoke("generate", STORY).exception, AssertionError)


def test_every_fault_of_a_checkpoint_is_shown(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
):
    def broken(_: object) -> None:
        raise CheckpointError("folder", ["[red]this", "that"])

    monkeypatch.setattr("fdjax.cli.generate.load", broken)
    stderr = invoke("generate", STORY).stderr
    assert stderr == (
        "error: folder: 2 problems with the checkpoint\n  - [red]this\n  - that\n"
    )


def test_an_interrupt_ends_the_line(
    invoke: Invoke, shared: LLM, monkeypatch: pytest.MonkeyPatch
):
    run = Runs.follow

    def interrupted(runs: Runs, sequences: Any) -> Any:
        increments = run(runs, sequences)
        yield next(increments)
        yield next(increments)
        increments.close()  # pyright: ignore[reportAttributeAccessIssue]  (a generator)
        raise KeyboardInterrupt

    monkeypatch.setattr(Runs, "follow", interrupted)
    result = invoke("generate", STORY, *GREEDY)
    assert result.exit_code == 130
    assert result.stdout.startswith(f"{STORY} there")
    assert result.stdout.endswith("\n")
    assert result.stderr == ""


def test_the_default_model_is_the_shipped_one():
    from fdjax.cli import options

    assert options.SHIPPED == SHIPPED


def test_the_version(invoke: Invoke):
    assert invoke("--version").stdout == f"fdjax {__version__}\n"
