"""Which widths of page tables need programs of their own."""

import json
import pathlib

import jax.numpy as jnp
import pytest

from fdjax.engine.buckets import Buckets
from fdjax.engine.widths import widths_by_rows
from fdjax.models.config import ModelConfig
from fdjax.serve.loading import SMALLEST_WIDTH, WIDTH_RATIO
from tests.support.handlers import skip_without
from tests.support.operations import ROOT

LLAMA = ROOT / "configs" / "models" / "llama3-8b.json"


def buckets_of(max_model_len: int) -> Buckets:
    return Buckets.of(
        max_num_seqs=256,
        max_model_len=max_model_len,
        page_size=16,
        max_batched_tokens=8192,
        smallest_width=SMALLEST_WIDTH["gpu"],
        width_ratio=WIDTH_RATIO["gpu"],
        alike_from=512,
    )


def found(max_model_len: int) -> dict[int, tuple[int, ...]]:
    skip_without("decode_attention", "cpu")  # the extension has the limits
    config = ModelConfig.from_hf(json.loads(pathlib.Path(LLAMA).read_text()))
    layout = config.kv_layout(num_pages=8, page_size=16, dtype=jnp.bfloat16)
    return dict(widths_by_rows(config, layout, buckets_of(max_model_len)))


def test_many_rows_need_one_width():
    widths = found(32_768)
    assert all(widths[rows] == (2048,) for rows in (32, 64, 128, 256))


def test_few_rows_have_programs_for_short_ones_and_for_long_ones():
    assert buckets_of(4096).widths == (64, 256)
    widths = found(4096)
    assert widths[1] == (256,)
    assert widths[8] == (64, 256)
    assert found(32_768)[1] == (256, 2048)


@pytest.mark.parametrize(("max_model_len", "most"), [(4096, 10), (8192, 14)])
def test_pairs_of_rows_and_width_are_few(max_model_len: int, most: int):
    """Each is a program of every sampling plan; docs/architecture.md says how many."""
    widths = found(max_model_len)
    assert widths.keys() == {*buckets_of(max_model_len).rows}
    assert sum(map(len, widths.values())) <= most
    assert max(map(len, widths.values())) <= 2


@pytest.mark.parametrize("rows", [1, 64])
def test_without_them_all_widths_have_programs(rows: int):
    assert buckets_of(4096).decode_widths(rows) == (64, 256)
