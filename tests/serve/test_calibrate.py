"""Calibration: from a text to bounds, and every reason why not."""

import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fdjax import LLM, ConfigError, SamplingParams
from fdjax.generate.score_histograms import NUM_BINS
from fdjax.models import SHIPPED, resolve
from fdjax.models.calibration import Range
from fdjax.models.decoder import Decoder
from fdjax.serve.calibrate import (
    Measured,
    calibration_of,
    load_for_calibration,
    measure,
)
from fdjax.serve.score_ranges import bin_edges
from fdjax.serve.tokenizer import Tokenizer

STORY = "Once upon a time there was a king who had three sons. "
CONTEXT = 32

type Loaded = tuple[Decoder, Tokenizer]


@pytest.fixture(scope="module")
def loaded() -> Iterator[Loaded]:
    yield load_for_calibration(SHIPPED)


@pytest.fixture
def story(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "story.txt"
    path.write_text(STORY * 5)
    return path


def measured(scores: np.ndarray, row_maxima: np.ndarray, name: str = "a") -> Measured:
    """Two layers of one head with the same known scores."""
    edges = bin_edges()
    both = (np.histogram(values, edges)[0] for values in (scores, row_maxima))
    counts = [np.stack([one, one]).reshape(2, 1, NUM_BINS) for one in both]
    return Measured(name, len(row_maxima), counts[0], counts[1])


def known(**options: Any) -> dict[str, Any]:
    return {"model": "m", "coverage": 1.0, "margin": 0.0} | options


def test_a_known_distribution_gives_known_bounds():
    data = measured(np.arange(-20.0, 11.0), np.arange(0.0, 11.0))
    found = calibration_of(data, **known(margin=2.0))
    end = 10 + 1 / 16
    assert found.scores == Range(-20.0, end)
    assert found.row_maxima == Range(0.0, end)
    assert found.unified is not None
    assert found.unified.phi + found.unified.low == pytest.approx(-22.0)
    assert found.unified.phi + found.unified.high == pytest.approx(end + 2.0)
    assert [layer.scores for layer in found.layers] == [found.scores] * 2
    assert found.models == ("m",)


def test_a_second_text_is_held_against_the_bounds():
    first = measured(np.arange(-20.0, 11.0), np.arange(0.0, 11.0))
    second = measured(np.arange(-20.0, 31.0), np.arange(11.0, 31.0), "b")
    found = calibration_of(first, [second], **known(margin=5.0))
    assert [text.text for text in found.texts] == ["a", "b"]
    assert [text.recomputed for text in found.texts] == [0.0, 0.75]
    assert [text.beyond_scores for text in found.texts] == [0.0, 1.0]


def test_a_range_too_wide_stays_synchronised():
    wide = measured(np.arange(-400.0, 300.0), np.arange(-100.0, 300.0))
    found = calibration_of(wide, **known())
    assert found.scheme == "synchronised"
    assert found.reason is not None and "span 399" in found.reason
    assert found.texts[0].recomputed is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coverage": 0.0}, "coverage is 0.0"),
        ({"coverage": 1.5}, "coverage is 1.5"),
        ({"coverage": float("nan")}, "coverage is nan"),
        ({"margin": -1.0}, "margin is -1.0"),
        ({"margin": float("nan")}, "margin is nan"),
    ],
)
def test_shares_out_of_range(options: dict[str, float], message: str):
    data = measured(np.zeros(3), np.zeros(3))
    with pytest.raises(ConfigError, match=message):
        calibration_of(data, **known(**options))


def test_a_text_is_read_in_pieces(loaded: Loaded, story: pathlib.Path):
    model, tokenizer = loaded
    plain = len(tokenizer.encode_plain(story.read_text()))
    done: list[int] = []
    found = measure(
        model,
        tokenizer,
        story,
        context=CONTEXT,
        max_tokens=10**4,
        on_progress=done.append,
    )
    pieces = -(-plain // (CONTEXT - 1))  # each begins with the first token of a prompt
    assert found.tokens == plain + pieces == sum(done)
    heads = model.config.num_layers * model.config.num_heads
    assert found.row_maxima.sum() == found.tokens * heads
    assert found.text == "story.txt"


def test_no_more_than_wanted_is_read(loaded: Loaded, story: pathlib.Path):
    found = measure(*loaded, story, context=CONTEXT, max_tokens=2 * CONTEXT + 5)
    assert found.tokens == 2 * CONTEXT


def test_a_calibration_foretells_what_generation_counts(
    loaded: Loaded, story: pathlib.Path
):
    """Narrow bounds, so that there is something to count."""
    model, tokenizer = loaded
    first = measure(model, tokenizer, story, context=64, max_tokens=64)
    found = calibration_of(first, model="m", coverage=0.5, margin=0.0)
    assert found.unified is not None and found.texts[0].recomputed is not None
    llm = LLM(softmax=found.unified, max_model_len=128, max_num_seqs=1)
    params = SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True)
    prompt = llm.generate(STORY, params)[0].prompt_token_ids
    assert llm.softmax_statistics().query_heads == (len(prompt) + 49) * 4
    rate = llm.softmax_statistics().rate
    assert rate == pytest.approx(found.texts[0].recomputed, abs=0.1)
    assert rate > 0.1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        (b"", "has no tokens"),
        (b"\xff\xfe\xff", "cannot be read"),
    ],
)
def test_texts_that_cannot_serve(
    loaded: Loaded, tmp_path: pathlib.Path, content: bytes | None, message: str
):
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as raised:
        measure(*loaded, path, context=CONTEXT, max_tokens=100)
    assert "text.txt" in str(raised.value)


def test_a_piece_must_have_room(loaded: Loaded, story: pathlib.Path):
    with pytest.raises(
        ConfigError, match="pieces of 1 tokens have no room beside the 1"
    ):
        measure(*loaded, story, context=1, max_tokens=100)


def test_too_many_scores_are_refused(
    loaded: Loaded, story: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fdjax.serve.calibrate._MAX_COUNT", 1000)
    with pytest.raises(ConfigError, match="2048 scores into one bin, which holds 1000"):
        measure(*loaded, story, context=CONTEXT, max_tokens=2 * CONTEXT)


def test_scores_that_are_no_numbers_are_refused(story: pathlib.Path):
    model, tokenizer = load_for_calibration(SHIPPED)
    scale = model.layers[0].attention_norm.scale
    scale[...] = scale[...] * np.float32("nan")
    with pytest.raises(ConfigError, match="only 0 of 768 queries have scores"):
        measure(model, tokenizer, story, context=CONTEXT, max_tokens=CONTEXT)


def test_a_model_without_a_tokenizer(tmp_path: pathlib.Path):
    shutil.copy(resolve(SHIPPED) / "config.json", tmp_path)
    with pytest.raises(ConfigError, match="has no tokenizer"):
        load_for_calibration(str(tmp_path))
