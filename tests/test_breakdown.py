"""Shares of a run by kind of operation, and their chart."""

from xml.etree import ElementTree

import pytest

from benchmarks.breakdown import KINDS, OTHER, chart, kind_of, milliseconds
from benchmarks.timeline import Kernel


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("void fdjax::decode_attention::decode_kernel<bfloat16, 128>", "attention"),
        ("void fdjax::prefill_attention::wgmma_kernel<128>", "attention"),
        ("void fdjax::matmul::flat_kernel<8>", "GEMM"),
        ("nvjet_tst_128x64_64x8_2x1_v_bz_TNT", "GEMM"),
        ("void fdjax::add_norm::rows_kernel", "norm"),
        ("loop_add_fusion_3", OTHER),
    ],
)
def test_kernels_are_known_by_their_names(kernel: str, expected: str):
    assert kind_of(kernel) == expected


def test_overlapping_kernels_add_up_to_the_run():
    """The second starts before the first ends, and its waiting is not counted."""
    kernels = [
        Kernel(0.0, 2e6, "flat_kernel"),
        Kernel(1e6, 5e6, "decode_attention"),
        Kernel(5e6, 6e6, "add_norm"),
        Kernel(6e6, 6.5e6, "loop_fusion"),
    ]
    spent = milliseconds(kernels)
    assert spent == pytest.approx(
        {"GEMM": 2.0, "attention": 3.0, "norm": 1.0, OTHER: 0.5}
    )
    assert sum(spent.values()) == pytest.approx(6.5)
    assert milliseconds([]) == {}


def test_a_chart_has_a_bar_of_each_kind():
    phase = {kind: 1.0 for kind, _ in KINDS}
    row = {"model": "llama", "context": 64, "prefill": phase, "decode": {OTHER: 7.0}}
    root = ElementTree.fromstring(chart([row], "some GPU"))
    drawn = [
        float(one.attrib["width"])
        for one in root.iter("{http://www.w3.org/2000/svg}rect")
        if one.attrib["height"] == "18.0"
    ]
    assert sorted(width / sum(drawn) for width in drawn) == pytest.approx(
        [0.1, 0.1, 0.1, 0.7], abs=1e-3
    )
