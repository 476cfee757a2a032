"""What is loaded is what was named, as it was asked for."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import huggingface_hub
import pytest

from fdjax import LLM, ConfigError, SamplingParams
from tests.cli.conftest import Invoke
from tests.support.engines import FIXTURES

LLAMA = FIXTURES / "llama"
PROMPTS = ([1, 2, 3], [27], [54, 7], [10, 47])
# The first token alone: decoding would have to be compiled for each model too.
PARAMS = SamplingParams(temperature=0.0, max_tokens=1, logprobs=0)

type Generated = list[tuple[list[int], float]]
type Generate = Callable[..., Generated]


@pytest.fixture
def generate(invoke: Invoke) -> Generate:
    """What `fdjax generate` writes: tokens, and how likely each was."""

    def run(*options: str | pathlib.Path) -> Generated:
        arguments = ["--temperature", "0", "--max-tokens", "1", "--logprobs", "0"]
        arguments += ["--max-model-len", "16", "--max-num-seqs", "1", "--json"]
        for prompt in PROMPTS:
            arguments += ["--prompt-ids", ",".join(map(str, prompt))]
        result = invoke("generate", *arguments, *map(str, options))
        assert result.exit_code == 0, result.stderr
        lines = map(json.loads, result.stdout.splitlines())
        return [(line["token_ids"], line["logprobs"][0]["logprob"]) for line in lines]

    return run


def expected(model: pathlib.Path, **options: Any) -> Generated:
    llm = LLM(model, max_model_len=16, max_num_seqs=1, **options)
    return [
        (output.token_ids, output.logprobs[0].logprob)
        for output in llm.generate(PROMPTS, PARAMS)
        if output.logprobs is not None
    ]


def test_a_folder_and_a_type(generate: Generate):
    """The tokens alone would be the same in float32."""
    rounded = generate("--model", LLAMA, "--dtype", "bfloat16")
    assert len(rounded) == len(PROMPTS)
    assert rounded == expected(LLAMA, dtype="bfloat16")
    assert rounded != expected(LLAMA, dtype="float32")


def test_a_configuration_alone_with_random_weights(
    generate: Generate, tmp_path: pathlib.Path
):
    fields = json.loads((LLAMA / "config.json").read_text()) | {"num_hidden_layers": 1}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields))
    generated = generate("--model", path, "--random-weights")
    assert generated == expected(path, random_weights=True)


def test_every_option_of_a_model_arrives(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
):
    seen: list[tuple[object, dict[str, Any]]] = []

    def refuse(model: object, **options: Any) -> None:
        seen.append((model, options))
        raise ConfigError("no")

    monkeypatch.setattr("fdjax.serve.llm.LLM", refuse)
    wanted: dict[str, Any] = {
        "dtype": "float16",
        "max_model_len": 33,
        "max_num_seqs": 5,
        "memory_fraction": 0.25,
        "revision": "main",
        "softmax": "synchronised",
    }
    flags = [
        part
        for name, value in wanted.items()
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    command = ("generate", "A", "--model", "some/model")
    switches = ("random_weights", "batch_invariant")
    flags += [f"--{name.replace('_', '-')}" for name in switches]
    assert invoke(*command, *flags).exit_code == 1
    ((model, options),) = seen
    assert callable(options.pop("on_progress"))
    assert (model, options) == ("some/model", wanted | dict.fromkeys(switches, True))


@pytest.mark.parametrize(
    "command",
    [
        ("generate", "Once"),
        ("generate", "Once", "--random-weights", "--model", str(LLAMA / "config.json")),
        ("chat",),
        ("calibrate", "--text", __file__),
        ("inspect", str(LLAMA)),
        ("tune", "--part", "shapes"),
        ("bench", "throughput"),
    ],
)
def test_a_model_that_is_here_has_no_revision(invoke: Invoke, command: tuple[str, ...]):
    result = invoke(*command, "--revision", "main")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: revision is 'main', but '")


def test_of_several_models_the_one_without_revisions_is_named(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: LLAMA)
    models = ("--model", "org/name", "--model", "tales-5m")
    result = invoke("tune", "--part", "shapes", *models, "--revision", "main")
    assert "but 'tales-5m' is the shipped model" in result.stderr
