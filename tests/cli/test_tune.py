"""`fdjax tune`: from a model's shapes to a table that the kernels are chosen by."""

import dataclasses
import json
import pathlib

import pytest

from fdjax.errors import Unsupported
from fdjax.generate import chain_times
from fdjax.kernels import chip
from fdjax.kernels.chip import Chip
from fdjax.kernels.decode_attention import table as attention
from fdjax.kernels.decode_attention.table import Blocks
from fdjax.kernels.layer_program.table import PART, ChainRows
from fdjax.kernels.matmul import OP, cases, table, timing
from fdjax.kernels.shared_prefix import table as shared
from fdjax.kernels.tuning import attention_times, occupancy, shared_times
from fdjax.kernels.tuning.chain import serving
from fdjax.kernels.tuning.occupancy import CLUSTERS, Occupancy
from fdjax.kernels.tuning.shared_worth import Sharing
from fdjax.models import program
from fdjax.models.config import ModelConfig
from tests.cli.conftest import Invoke
from tests.support import h200
from tests.support.matmul_times import MadeUpTimes

MODELS = pathlib.Path(__file__).parents[2] / "configs" / "models"
LLAMA3, LLAMA2 = str(MODELS / "llama3-8b.json"), str(MODELS / "llama2-7b.json")
GEMMS, CHAIN = ("--part", "shapes"), ("--part", "layer_program")
SHAPES = [[6144, 4096], [4096, 4096], [28672, 4096], [4096, 14336], [128256, 4096]]


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> pathlib.Path:
    """The user's table, on an H200 with made-up times."""
    h200.pretend(monkeypatch, tmp_path / "config")
    monkeypatch.setattr(timing, "Stopwatch", MadeUpTimes)
    return tmp_path / "config" / "fdjax" / "tuned" / "nvidia-h200.json"


def _shapes(path: pathlib.Path) -> list[list[int]]:
    return [[row["n"], row["k"]] for row in json.loads(path.read_text())["shapes"]]


def test_tables_a_file_and_a_picture(
    invoke: Invoke, user: pathlib.Path, tmp_path: pathlib.Path
):
    plot = tmp_path / "choices.png"
    result = invoke("tune", *GEMMS, "--model", LLAMA3, "--plot", str(plot))
    assert result.exit_code == 0, result.stderr
    for text in (
        "qkv [6144, 4096]",
        "head [128256, 4096]",
        "M = 1, flat up to 64, XLA's dot",
    ):
        assert text in result.stdout
    assert f"5 shapes written to {user}" in result.stderr.replace("\n", "")
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert _shapes(user) == SHAPES
    assert [choice.flat_up_to for choice in table.load(user).values()] == [64] * 5


def test_what_was_written_is_found_when_a_call_is_traced(
    invoke: Invoke, user: pathlib.Path
):
    assert invoke("tune", *GEMMS, "--model", LLAMA3, "--m", "1,2").exit_code == 0

    def explained(m: int) -> str:
        return OP.explain(cases._case("qkv", m=m, n=6144, k=4096).call)

    by = f" (the user's table {user})"
    assert explained(1) == f"matmul: gemv{by}"
    assert explained(2) == f"matmul: flat{by}"
    assert explained(3) == f"matmul: reference{by}"


def test_json_is_the_file(invoke: Invoke, user: pathlib.Path, tmp_path: pathlib.Path):
    out = tmp_path / "table.json"
    result = invoke("tune", *GEMMS, "--model", LLAMA3, "--out", str(out), "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == out.read_text()
    document = json.loads(result.stdout)
    assert document["device"] == "NVIDIA H200"
    row = document["shapes"][0]
    assert row["measured_with"].startswith("fdjax tune ")
    assert [point["m"] for point in row["us"]] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert set(row["searched"]) == {"8", "16", "32", "64"}
    assert not user.exists()


def test_models_share_shapes_and_known_ones_may_be_left_out(
    invoke: Invoke, user: pathlib.Path
):
    assert invoke("tune", *GEMMS, "-m", LLAMA3, "--m", "8").exit_code == 0
    before = json.loads(user.read_text())["shapes"]
    both = ("tune", *GEMMS, "-m", LLAMA3, "-m", LLAMA2, "--dtype", "bfloat16")
    result = invoke(*both, "--m", "1,8", "--missing")
    assert result.exit_code == 0, result.stderr
    assert "out [4096, 4096]" not in result.stdout
    new = [[12288, 4096], [22016, 4096], [4096, 11008], [32000, 4096]]
    assert _shapes(user) == [*SHAPES, *new]
    assert json.loads(user.read_text())["shapes"][:5] == before
    nothing = invoke(*both, "--missing", "--plot", "a.svg")
    assert nothing.exit_code == 0
    assert "0 shapes written" in nothing.stderr
    # As its config.json has it, this model is of another format: float16.
    assert invoke("tune", *GEMMS, "-m", LLAMA2, "--missing").exit_code == 0
    assert _shapes(user)[9:] == [new[0], [4096, 4096], *new[1:]]


def test_after_its_limit_no_shape_is_begun_and_another_run_goes_on(
    invoke: Invoke, user: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    clock = iter([0.0, 0.0, 50.0, 100.0])  # the third shape would begin at 100
    monkeypatch.setattr("time.monotonic", lambda: next(clock, 100.0))
    result = invoke("tune", *GEMMS, "--model", LLAMA3, "--m", "8", "--limit", "90")
    assert result.exit_code == 0, result.stderr
    assert _shapes(user) == SHAPES[:2]
    said = result.stderr.replace("\n", " ")
    assert "left after 90 s: [28672, 4096], [4096, 14336], [128256, 4096]" in said
    result = invoke("tune", *GEMMS, "--model", LLAMA3, "--m", "8", "--missing")
    assert result.exit_code == 0, result.stderr
    assert _shapes(user) == SHAPES


def test_what_a_table_has_of_other_operations_stays(invoke: Invoke, user: pathlib.Path):
    part = {"gemv_up_to": 0, "flat_up_to": 32, "gemm_up_to": 96, "library": []}
    user.parent.mkdir(parents=True)
    user.write_text(json.dumps({"layer_program": part, "shapes": []}))
    assert invoke("tune", *GEMMS, "--model", LLAMA3, "--m", "8").exit_code == 0
    document = json.loads(user.read_text())
    assert document["layer_program"] == part
    assert document["format"] == 1


class MadeUpSteps:
    """`gemv` is fastest for two rows, `flat` up to 32, and cuBLASLt from then on.

    Of its candidates for a gate and up GEMM, at 576 rows, the fourth is. At 1,024 rows,
    whose tiles fill 969 thousandths of the SMs, a gate should be inside.
    """

    check = staticmethod(chain_times.ChainTimes.check)

    def __init__(self, config: ModelConfig, dtype: str, *, most_rows: int) -> None:
        assert (config.num_layers, dtype, most_rows) == (32, "bfloat16", 256)

    def microseconds(self, rows: ChainRows, m: int) -> float:
        up_to = (rows.gemv_up_to, rows.flat_up_to, rows.gemm_up_to)
        start, slope = {"gemv": (80, 10), "flat": (99, 1), "gemm": (140, 1)}.get(
            serving(m, up_to), (131, 0)
        )
        better = rows.candidates.get((576, 28672, 4096)) == 3 and m == 576
        inside = m == 1024 and rows.persistent_from == 0
        return start + slope * m - 10 * better - 10 * inside


def test_steps_say_who_serves_in_the_one_call_of_all_layers(
    invoke: Invoke, user: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(chain_times, "ChainTimes", MadeUpSteps)
    assert PART.find().candidates, "the package's table has others"
    result = invoke("tune", "--model", LLAMA3, "--m", "8", *GEMMS, *CHAIN)
    assert result.exit_code == 0, result.stderr
    for text in (
        "gemv up to M = 2, flat up to M = 32, gemm up to M = 32, library above",
        "microseconds of a layer",
        "XLA's dot",
    ):
        assert text in result.stdout.replace("\n", " ")
    said = result.stderr.replace("\n", " ")
    assert "the first being 0: 3 at M = 576 of [28672, 4096]" in said
    part = json.loads(user.read_text())["layer_program"]
    assert part["measured_with"].startswith("fdjax tune ")
    assert part["measured_with"].endswith(": steps of four layers")
    assert len(_shapes(user)) == 5
    candidates = {(576, 28672, 4096): 3}
    assert PART.find() == ChainRows(2, 32, 32, candidates, persistent_from=950)
    assert "gates are inside GEMMs whose tiles fill 950 thousandths" in said
    again = invoke("tune", "-m", LLAMA3, *CHAIN, "--json")
    assert again.stdout == user.read_text()


def test_candidates_of_the_file_that_is_written_stay(
    invoke: Invoke,
    user: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
):
    monkeypatch.setattr(chain_times, "ChainTimes", MadeUpSteps)
    library = [{"m": 512, "n": 112, "k": 224, "candidate": 3}]
    part = {"gemv_up_to": 0, "flat_up_to": 32, "gemm_up_to": 96, "library": library}
    out = tmp_path / "table.json"
    out.write_text(json.dumps({"layer_program": part, "shapes": []}))
    arguments = ("tune", "-m", LLAMA3, *CHAIN, "--out", str(out))
    assert invoke(*arguments).exit_code == 0
    found = {"m": 576, "n": 28672, "k": 4096, "candidate": 3}
    written = json.loads(out.read_text())["layer_program"]["library"]
    assert written == [*library, found]


class MadeUpBlocks:
    """Rows of 4,096 tokens and more are long; 256 blocks are better than 264."""

    def microseconds(self, blocks: Blocks, rows: int, tokens: int) -> float:
        del rows
        reached = tokens >= blocks.long_from
        return blocks.blocks_two_an_sm + 10 * (reached != (tokens >= 4096))


class MadeUpReads:
    """To read once is always faster, but never for beams."""

    def rows(self, sharing: Sharing, once: int) -> float:
        return 100 * len(sharing.groups) - once

    def prompts(self, count: int, tokens: int, *, once: bool) -> float:
        return count * tokens + 10 * once


@pytest.fixture
def whole(user: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The user's table; every part has made-up times."""
    gpus = [Occupancy(132, {size: 132 // size for size in CLUSTERS})]
    monkeypatch.setattr(occupancy, "of_devices", lambda: gpus)
    monkeypatch.setattr(chain_times, "ChainTimes", MadeUpSteps)
    monkeypatch.setattr(attention_times, "BlockTimes", MadeUpBlocks)
    monkeypatch.setattr(shared_times, "SharedTimes", MadeUpReads)
    return user


def test_one_command_fills_a_table(invoke: Invoke, whole: pathlib.Path):
    result = invoke("tune", "--model", LLAMA3, "--m", "8")
    assert result.exit_code == 0, result.stderr
    for text in (
        "of many rows: 256 blocks",
        "attention of long rows: from 4,096 or 4,096 tokens",
        "of_group = 256",
        "of_batch = 4,128",
        "prompt_bytes = 346,030,080",
        "all layers: gemv up to M = 2",
    ):
        assert text in " ".join(result.stdout.split()), text
    assert "chip: 132 SMs; clusters at once: 66 of 2" in result.stderr
    document = json.loads(whole.read_text())
    parts = ("chip", "layer_program", "decode_attention", "shared_prefix")
    assert {name: "measured_with" in document[name] for name in parts} == dict.fromkeys(
        parts, True
    )
    assert chip.PART.find() == Chip(132, {size: 132 // size for size in CLUSTERS})
    assert attention.PART.find() == Blocks(4096, 4096, 256)
    assert shared.PART.find().of_group == 256
    assert _shapes(whole) == SHAPES


def test_only_the_parts_that_are_named_are_measured(
    invoke: Invoke, whole: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(timing, "Stopwatch", None)
    result = invoke("tune", "--part", "decode_attention", "--part", "chip")
    assert result.exit_code == 0, result.stderr
    document = json.loads(whole.read_text())
    assert document.keys() - {"format", "device", "shapes"} == {
        "chip",
        "decode_attention",
    }
    monkeypatch.setattr(attention_times, "BlockTimes", None)
    named = ("--part", "decode_attention", "--part", "shared_prefix", "--missing")
    result = invoke("tune", *named, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["shared_prefix"]["of_group"] == 256
    assert invoke("tune", "--part", "shape").exit_code == 2


def test_a_part_that_cannot_be_measured_is_left_out_unless_it_is_named(
    invoke: Invoke, whole: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse() -> None:
        raise Unsupported("there is no driver")

    monkeypatch.setattr(occupancy, "of_devices", refuse)
    told = "the part chip has nothing to measure: there is no driver"
    result = invoke("tune", "--part", "chip")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {told}")
    result = invoke("tune", "--model", LLAMA3, "--m", "8")
    assert result.exit_code == 0, result.stderr
    assert f"{told}; it is left out" in result.stderr.replace("\n", " ")
    document = json.loads(whole.read_text())
    assert "chip" not in document and "shared_prefix" in document


@pytest.mark.parametrize("broken", ["model", "table"])
def test_a_chain_that_cannot_be_measured_is_refused_before_anything_is(
    invoke: Invoke, user: pathlib.Path, monkeypatch: pytest.MonkeyPatch, broken: str
):
    monkeypatch.setattr(timing, "Stopwatch", None)
    user.parent.mkdir(parents=True)
    part = {"layer_program": {"gemv_up_to": "x"}} if broken == "table" else {}
    user.write_text(json.dumps(part | {"shapes": []}))
    if broken == "model":
        odd = dataclasses.replace(program.OP._impls["cuda"], refuse=lambda _: "it is")
        monkeypatch.setattr(program.OP, "_impls", {"cuda": odd})
    result = invoke("tune", "--model", LLAMA3, "--m", "8", *GEMMS, *CHAIN)
    assert result.exit_code == 1
    assert ("the part layer_program has nothing to measure" in result.stderr) == (
        broken == "model"
    )
    assert json.loads(user.read_text()) == part | {"shapes": []}


def test_what_a_kernel_cannot_serve_is_said(
    invoke: Invoke, user: pathlib.Path, tmp_path: pathlib.Path
):
    odd = tmp_path / "config.json"
    fields = json.loads(pathlib.Path(LLAMA3).read_text())
    odd.write_text(json.dumps({**fields, "vocab_size": 1001}))
    result = invoke("tune", *GEMMS, "--model", str(odd), "--m", "8")
    assert result.exit_code == 0, result.stderr
    said = result.stderr.replace("\n", " ")
    assert "qkv [6144, 4096] is measured without gemv: M is 8" in said
    assert "head [1001, 4096] is left to XLA: gemv: " in said
    assert _shapes(user) == SHAPES[:-1]


@pytest.mark.cpu
def test_on_a_cpu_nothing_is_tuned(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(timing, "Stopwatch", None)  # nothing is allocated
    result = invoke("tune", "--model", LLAMA3)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: there is nothing to tune on cpu (cpu): ")
    assert "NVIDIA GPU of compute capability 9.0" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "no-such-folder/a.json"], "no-such-folder is no folder"),
        (["--out", "."], ". is a folder; name a file in it"),
        (["--plot", "no-such-folder/a.png"], "no-such-folder is no folder"),
        (["--plot", "choices.doc"], "'.doc', which is no format of a picture"),
        (["--model", "no-such-model"], "there is no folder 'no-such-model'"),
        (["--dtype", "float32"], "the operands are float32; it takes all bfloat16"),
    ],
)
def test_errors_are_one_line(
    invoke: Invoke, user: pathlib.Path, options: list[str], message: str
):
    model = [] if "--model" in options else ["--model", LLAMA3]
    result = invoke("tune", *model, *options)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert not user.exists()


def test_a_broken_table_is_an_error_before_anything_is_measured(
    invoke: Invoke, user: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(timing, "Stopwatch", None)
    user.parent.mkdir(parents=True)
    user.write_text(json.dumps({"device": "NVIDIA H200", "shapes": [{"n": 8}]}))
    result = invoke("tune", "--model", LLAMA3)
    assert result.exit_code == 1
    assert f"the table {user} cannot be read: shapes[0] has no 'k'" in result.stderr
    user.write_text(json.dumps({"device": "NVIDIA A100", "shapes": []}))
    assert "is of NVIDIA A100" in invoke("tune", "--model", LLAMA3).stderr


@pytest.mark.parametrize(
    "held",
    [
        "not json",
        "[]",
        json.dumps({"shapes": {}}),
        json.dumps({"format": 2, "shapes": []}),
        json.dumps({"chip": {"num_sms": "x"}, "shapes": []}),
    ],
    ids=["text", "list", "no_list", "format", "part"],
)
def test_a_file_that_is_no_table_is_not_to_be_made_anew_by_this_command(
    invoke: Invoke, user: pathlib.Path, tmp_path: pathlib.Path, held: str
):
    out = tmp_path / "notes.txt"
    out.write_text(held)
    result = invoke("tune", "--model", LLAMA3, "--out", str(out))
    assert result.exit_code == 1
    assert f"the table {out} cannot be read: " in result.stderr
    said = result.stderr.rstrip()
    assert said.endswith("; give another --out")
    assert out.read_text() == held
    user.parent.mkdir(parents=True)
    user.write_text(held)
    said = invoke("tune", "--model", LLAMA3).stderr.rstrip()
    assert said.endswith("; delete it, or give an --out")


@pytest.mark.parametrize(
    ("options", "readers", "parts"),
    [
        (["--model", "/nope"], "shapes and layer_program", ["chip"]),
        (["--dtype", "auto"], "shapes and layer_program", ["decode_attention"]),
        (["--revision", "x"], "shapes and layer_program", ["chip", "shared_prefix"]),
        (["--plot", "x.png"], "shapes", ["layer_program"]),
        (["--m", "7"], "shapes", ["chip"]),
        (["--limit", "9"], "shapes", ["layer_program", "chip"]),
    ],
    ids=lambda one: one[0] if isinstance(one, list) else None,
)
def test_an_option_that_no_part_reads_is_refused(
    invoke: Invoke,
    whole: pathlib.Path,
    options: list[str],
    readers: str,
    parts: list[str],
):
    named = [word for part in parts for word in ("--part", part)]
    result = invoke("tune", *named, *options)
    assert result.exit_code == 2
    said = " ".join(result.stderr.replace("│", " ").split())
    told = f"{options[0]} is read by the measurement of {readers} only, and --part"
    assert f"{told} names {', '.join(parts)}; leave {options[0]} out" in said
    assert not whole.exists()


def test_an_option_that_one_of_several_parts_reads_is_taken(
    invoke: Invoke, whole: pathlib.Path
):
    parts = ("--part", "chip", *GEMMS)
    result = invoke("tune", *parts, "--model", LLAMA3, "--m", "8", "--limit", "0")
    assert result.exit_code == 0, result.stderr
    assert whole.exists()


@pytest.mark.parametrize("m", ["99999999999", "1,8193", "9" * 5000])
def test_more_rows_than_any_kernel_is_for_are_refused(invoke: Invoke, m: str):
    result = invoke("tune", "--m", m)
    assert result.exit_code == 2
    said = " ".join(result.stderr.replace("│", " ").split())
    assert "it takes 1 to 8,192 rows" in said
    assert len(said) < 400


@pytest.mark.parametrize(
    "m", ["", "0", "8,", "-1", "1.5", "a", "0" * 5000, "\N{ARABIC-INDIC DIGIT THREE}"]
)
def test_wrong_usage(invoke: Invoke, m: str):
    result = invoke("tune", "--m", m)
    assert result.exit_code == 2
