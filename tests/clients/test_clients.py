"""Clients that people have, each in an environment of its own, against `fdjax serve`.

`.ci/run clients` makes the environments; without them, these tests skip.
"""

import json
import pathlib
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.client_times import Pair, compared
from fdjax import LLM, SamplingParams
from tests.support.server_process import server

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = pathlib.Path(__file__).parent
CLIENTS = ("langchain", "llama_index", "lm_eval", "aiperf")
STORY = "Once upon a time"
OTHER = "The king said"
GREEDY = SamplingParams(temperature=0.0, max_tokens=16)


# Before a server is started for nobody.
pytestmark = pytest.mark.skipif(
    not any((ROOT / f".venv-{client}").is_dir() for client in CLIENTS),
    reason="`.ci/run clients` installs them, each in an environment of its own",
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Of a server."""
    with server("--max-model-len", "256", "--max-num-seqs", "4") as (_, address):
        yield f"{address}/v1"


def environment(name: str) -> pathlib.Path:
    """The folder of a client's programs."""
    folder = ROOT / f".venv-{name}" / "bin"
    if not folder.is_dir():
        pytest.skip(f"`.ci/run clients` installs {name}, in an environment of its own")
    return folder


def seen(name: str, url: str) -> Any:
    """What a client's program says."""
    program = FOLDER / f"{name}_program.py"
    done = subprocess.run(
        [environment(name) / "python", program, url],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_langchain(url: str, llm: LLM):
    told = seen("langchain", url)
    (output,) = llm.generate(STORY, GREEDY)
    for name in ("text", "streamed", "chat", "chat_streamed", "response"):
        assert told[name] == output.text, name
    assert told["batch"] == [output.text] * 2
    count = len(output.prompt_token_ids)
    assert told["usage"]["input_tokens"] == count
    assert told["usage"]["output_tokens"] == 16
    assert told["calls"], "it was told to call"
    assert all(name == "walk" for name, _ in told["calls"])
    assert all(given["way"] in ("north", "south") for _, given in told["calls"])
    for vector, mine in zip(told["vectors"], llm.embed([STORY, OTHER]), strict=True):
        assert vector == pytest.approx(mine.outputs.embedding, abs=1e-4)


def test_llama_index(url: str, llm: LLM):
    told = seen("llama_index", url)
    (output,) = llm.generate(STORY, GREEDY)
    assert {*told.values()} == {output.text}


def test_lm_eval(url: str, llm: LLM, tmp_path: pathlib.Path):
    """Likelihoods through `local-completions` are those of prompts here."""
    arguments = {
        "model": "tales-5m",
        "base_url": f"{url}/completions",
        "tokenizer_backend": "huggingface",
        "tokenizer": str(llm.folder),
        "num_concurrent": 2,
        "max_length": 256,
    }
    done = subprocess.run(
        [
            *(environment("lm_eval") / "lm_eval", "run"),
            *("--model", "local-completions", "--tasks", "fdjax_tales"),
            *("--model_args", ",".join(f"{k}={v}" for k, v in arguments.items())),
            *("--include_path", FOLDER / "tasks", "--log_samples"),
            *("--output_path", tmp_path),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (path,) = tmp_path.rglob("samples_*.jsonl")
    samples = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(samples) == 4
    for sample in samples:
        for choice, answer in zip(
            sample["doc"]["choices"], sample["filtered_resps"], strict=True
        ):
            wanted = likelihood(llm, sample["doc"]["text"], choice)
            assert float(answer[0]) == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize("kind", ["completions", "chat"])
def test_aiperf(url: str, kind: str):
    """It counts what the server counts."""
    environment("aiperf")
    address = url.removesuffix("/v1")
    counts, times = compared(address, kind=kind, requests=12, output_tokens=16)
    assert counts["requests"] == Pair(12, 12)
    assert counts["output tokens"] == Pair(12 * 16, 12 * 16)
    prompts = counts["prompt tokens"]
    assert prompts.client == prompts.server >= 12 * 24
    assert all(pair.client > 0 and pair.server > 0 for pair in times.values())


def likelihood(llm: LLM, text: str, choice: str) -> float:
    """Sum of the log-probabilities of a choice's tokens.

    The client sends token ids, without the one that a text begins with.
    """
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    encode = llm.get_tokenizer().encode_plain
    (output,) = llm.generate([encode(text + choice)], params)
    begin = len(encode(text))
    assert output.prompt_logprobs is not None
    return sum(one.logprob for one in output.prompt_logprobs[begin:] if one)
