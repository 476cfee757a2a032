"""`fdjax inspect --plan`: how attention over rows of some lengths is shared out."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fdjax.cli import attention_plans
from fdjax.cli.attention_plans import parse_rows
from fdjax.cli.plan_pictures import Bars
from fdjax.cli.prompt_plans import Prompt, share
from fdjax.config import Attention
from fdjax.errors import ConfigError
from fdjax.kernels.chip import chip
from fdjax.models.config import ModelConfig
from tests.cli.conftest import Invoke

MODELS = pathlib.Path(__file__).parents[2] / "configs" / "models"
LLAMA = str(MODELS / "llama3-8b.json")


def _attention(fields: dict[str, Any]) -> Attention:
    """Of the first layer of a model with this configuration."""
    return ModelConfig.from_hf(fields).layers[0].attention


@pytest.fixture
def odd(tmp_path: pathlib.Path) -> Callable[..., str]:
    """Writes the configuration of a Llama with some fields of its own."""

    def write(**fields: int) -> str:
        path = tmp_path / "config.json"
        llama = json.loads(pathlib.Path(LLAMA).read_text())
        path.write_text(json.dumps(llama | fields))
        return str(path)

    return write


def test_rows_are_counts_and_lengths():
    assert parse_rows("3x512,7,1x40") == ((512, 512, 512, 7, 40), ())


def test_new_tokens_come_after_others():
    prompts = (Prompt(4, 1020), Prompt(4, 1020), Prompt(64, 0))
    assert parse_rows("2x4@1020,9,64@0") == ((9,), prompts)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'' is not a length"),
        ("3x", "'3x' is not a length"),
        ("x5", "'x5' is not a length"),
        ("1x2x5", "'1x2x5' is not a length"),
        ("5,-3", "'-3' is not a length"),
        ("2.5x3", "'2.5x3' is not a length"),
        ("4000x1,97x1", "more rows than 4096"),
        ("1000000x1", "4096: 1000000 with '1000000x1'; give 4096 at most"),
        ("9" * 50 + "x1", "4096: 1000000000000 or more with '9+x1'; give 4096 at"),
        ("4000x1,97x1", "4096: 4097 with '97x1'; give 4096 at most"),
        ("4000x1,97x1@5", "more rows than 4096"),
        ("64@", "'64@' is not a length"),
        ("@64", "'@64' is not a length"),
        ("2x3@4@5", "'2x3@4@5' is not a length"),
        ("0@64", "'0@64' is a row of no tokens"),
        ("2@16777215", "more than 16777216 tokens"),
        ("2x16777216@0", "more than 16777216 new tokens"),
        ("0x5", "'0x5' is no row; give 1 or more"),
        ("0x5,3", "'0x5' is no row; give 1 or more"),
        ("\N{ARABIC-INDIC DIGIT THREE}", "is not a length"),
        ("9" * 5000, r"9\.\.\.: a row of more than 16777216 tokens"),
        ("9" * 5000 + "x5", r"9\.\.\.: more rows than 4096"),
        ("8x0", "'8x0' is a row of no tokens; give 1 or more"),
        ("3x5,0", "'0' is a row of no tokens; give 1 or more"),
        ("16777217", "more than 16777216 tokens"),
        ("16777217", "16777216 tokens: 16777217; give 16777216 at most"),
        ("1@16777216", "16777216 tokens: 16777217; give 16777216 at most"),
        ("9" * 50, "16777216 tokens: 1000000000000 or more; give 16777216 at most"),
        ("2x16777216@0", "16777216 new tokens: 33554432; give 16777216 at most"),
    ],
)
def test_other_words_are_refused(text: str, reason: str):
    with pytest.raises(ConfigError, match=reason):
        parse_rows(text)


def test_a_long_row_is_cut(invoke: Invoke, tmp_path: pathlib.Path):
    picture = tmp_path / "plan.svg"
    result = invoke("inspect", LLAMA, "--plan", "63x512,32768", "--plot", str(picture))
    assert result.exit_code == 0, result.stderr
    assert "64, of 512 to 32,768 tokens" in result.stdout
    assert "pieces of cut rows, 1 head" in result.stdout
    busiest = float(result.stdout.split("busiest cluster")[1].split()[0])
    assert 1.0 <= busiest <= 1.15
    attention = _attention(json.loads(pathlib.Path(LLAMA).read_text()))
    lengths = (512,) * 63 + (32_768,)
    plan = attention_plans.share(attention, lengths, page_size=16).plan
    assert 1.0 <= plan.busiest <= 1.15  # of the mean of all clusters
    assert picture.read_text().lstrip().startswith("<?xml")


def test_prompts_are_cut_into_tiles_and_pieces(invoke: Invoke, tmp_path: pathlib.Path):
    picture = tmp_path / "plan.svg"
    rows = "60x1016,64@32704,2x5@0"
    result = invoke("inspect", LLAMA, "--plan", rows, "--plot", str(picture))
    assert result.exit_code == 0, result.stderr
    assert "60, of 1,016 to 1,016 tokens" in result.stdout
    assert "3, of 5 to 64 new tokens" in result.stdout
    assert "4, of 32 tokens at most" in result.stdout
    assert "pieces of tiles' keys" in result.stdout
    assert picture.read_text().lstrip().startswith("<?xml")


def test_every_key_of_a_tile_is_some_items():
    attention = _attention(json.loads(pathlib.Path(LLAMA).read_text()))
    sharing = share(attention, (Prompt(64, 32_704), Prompt(1, 7)))
    keys = {(0, 0): 0, (0, 32): 0, (1, 64): 0}
    for row, first, _, _, begin, end, *_ in sharing.work.tolist():
        keys[row, first] += end - begin
    assert keys == {(0, 0): 32_736, (0, 32): 32_768, (1, 64): 8}
    assert sharing.costs.sum() >= 8 * (2 * 256 + 1)
    loads = np.bincount(sharing.takers, sharing.costs, minlength=chip().num_sms)
    assert 1.0 <= loads.max() / loads.mean() <= 1.15  # of all SMs


def test_equal_rows_are_not(invoke: Invoke):
    result = invoke("inspect", LLAMA, "--plan", "64x1024")
    assert result.exit_code == 0, result.stderr
    assert "pieces" not in result.stdout
    assert "1.00 of the mean" in result.stdout


def test_the_mean_is_of_those_with_work(invoke: Invoke, tmp_path: pathlib.Path):
    """As the picture has it, whose places are whole numbers."""
    picture = tmp_path / "plan.svg"
    rows = "5,100,5@0"
    result = invoke("inspect", "tales-5m", "--plan", rows, "--plot", str(picture))
    assert result.exit_code == 0, result.stderr
    told = " ".join(result.stdout.split())
    assert "busiest cluster 1.38 of the mean of 4 clusters with work" in told
    assert "busiest block 1.00 of the mean of 2 blocks with work" in told
    across, upwards = picture.read_text().split('id="matplotlib.axis_2"')[:2]
    assert "<!-- 1 -->" in across and "<!-- 0.5 -->" not in across
    assert "<!-- 175 -->" in upwards


def test_the_mean_of_all_needs_no_more_words():
    bars = Bars(np.array([0, 1, 1]), np.array([4, 1, 1]), np.zeros(3, bool))
    assert bars.told("cluster", 2) == "1.33 of the mean"
    assert bars.told("cluster", 9) == "1.33 of the mean of 2 clusters with work"


def test_one_row_of_the_most_tokens_has_a_plan(invoke: Invoke):
    result = invoke("inspect", LLAMA, "--plan", f"1,{2**24}")
    assert result.exit_code == 0, result.stderr
    assert "whole rows, 1 head " in result.stdout


def test_a_window_hides_keys_of_prompts():
    """Of 64 new tokens after 32,704 the first one sees 4,095 before itself."""
    fields = json.loads((MODELS / "mistral-7b-v0.1.json").read_text())
    work = share(_attention(fields), (Prompt(64, 32704),)).work
    assert work[:, 4].min() == 32704 - 4095
    wide = _attention(fields | {"sliding_window": None})
    assert share(wide, (Prompt(64, 32704),)).work[:, 4].min() == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--plan", "4096x4096@0"], "16,777,216 new tokens"),
        (
            ["--plan", "5", "--page-size", "200"],
            "--page-size 200: the kernel has pages",
        ),
    ],
    ids=["tiles", "page_size"],
)
def test_what_no_kernel_has_is_refused(invoke: Invoke, options: list[str], reason: str):
    result = invoke("inspect", LLAMA, *options)
    assert result.exit_code == 1
    assert reason in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"head_dim": 72}, "head size 72; it takes 64, 80, 96, 128 and 256."),
        (
            {"num_key_value_heads": 1},
            "32 query heads over 1 key/value heads; it takes 1 to 16 for each.",
        ),
        (
            {"head_dim": 256, "num_key_value_heads": 2},
            "16 query heads of size 256 for each key/value head; it takes 8.",
        ),
    ],
    ids=["head_dim", "group", "group_of_wide_heads"],
)
def test_heads_that_no_kernel_takes_have_no_plan(
    invoke: Invoke, odd: Callable[..., str], fields: dict[str, int], reason: str
):
    result = invoke("inspect", odd(**fields), "--plan", "63x512,32768,64@7")
    assert result.exit_code == 1
    assert result.stdout == ""
    told = "no CUDA kernel of an H200 takes these heads in decode_attention: "
    assert f"{told}{reason}" in result.stderr
    by = "the kernel in Pallas" if fields.get("head_dim") == 256 else "the reference"
    assert f"There {by} serves them, which goes by no plan" in result.stderr


def test_heads_that_only_prompts_have_a_kernel_for_have_a_plan_of_prompts(
    invoke: Invoke, odd: Callable[..., str]
):
    result = invoke("inspect", odd(head_dim=72), "--plan", "64@0")
    assert result.exit_code == 0, result.stderr
    assert "Attention of prompts" in result.stdout
    result = invoke("inspect", odd(head_dim=264), "--plan", "64@0")
    assert result.exit_code == 1
    told = "in prefill_attention: head size 264; it takes 8 to 256 in steps of 8. "
    assert f"{told}There the reference serves them" in result.stderr


def test_layers_of_each_window_have_a_plan(invoke: Invoke, tmp_path: pathlib.Path):
    gemma, picture = str(MODELS / "gemma2-9b.json"), tmp_path / "plan.svg"
    rows = "63x512,32768,64@32704"
    result = invoke("inspect", gemma, "--plan", rows, "--plot", str(picture))
    assert result.exit_code == 0, result.stderr
    _, near, new_near, far, new_far = result.stdout.split("Attention")
    for part in (near, new_near):
        assert "in layers with a window of 4,096 tokens" in part
        assert "21 of 42: 0, 2, 4, 6, 8, 10 and so on, up to 40" in part
    for part in (far, new_far):
        assert "in layers without a window" in part
        assert "21 of 42: 1, 3, 5, 7, 9, 11 and so on, up to 41" in part
    assert "at most 1,360 tokens" in near and "at most 4,224 tokens" in far
    assert near.split("items")[1] != far.split("items")[1]
    assert new_near.split("pieces")[1] != new_far.split("pieces")[1]
    assert picture.read_text().count("<!-- pieces of cut rows -->") == 2
    assert picture.read_text().count("<!-- cluster -->") == 2
    assert picture.read_text().count("<!-- block -->") == 2


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("absent/plan.svg", "absent is no folder; make it first"),
        ("plan.xyz", "'.xyz', which is no format of a picture"),
    ],
)
def test_a_picture_that_cannot_be_written_is_refused_before_the_plan(
    invoke: Invoke, tmp_path: pathlib.Path, place: str, reason: str
):
    picture = str(tmp_path / place)
    result = invoke("inspect", LLAMA, "--plan", "64x1024", "--plot", picture)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert reason in result.stderr


def test_a_plan_is_not_told_as_json(invoke: Invoke):
    result = invoke("inspect", LLAMA, "--plan", "64x1024", "--json")
    assert result.exit_code != 0
    assert result.stdout == ""
    assert "--plan" in result.stderr


def test_a_picture_without_a_plan_is_refused(invoke: Invoke):
    result = invoke("inspect", LLAMA, "--plot", "x.svg")
    assert result.exit_code != 0
    assert "--plan" in result.stderr


@pytest.mark.parametrize(
    "options",
    [
        ["--json"],
        ["--dtype", "bfloat16"],
        ["--device", "here"],
        ["--max-num-seqs", "4"],
        ["--memory-fraction", "0.5"],
    ],
    ids=str,
)
def test_what_a_plan_does_not_read_is_refused(invoke: Invoke, options: list[str]):
    result = invoke("inspect", LLAMA, "--plan", "64x1024", *options)
    assert result.exit_code == 2
    said = " ".join(result.stderr.replace("│", " ").split())
    assert f"has no {options[0]}; leave one out" in said
