"""Which kernel computes each linear map of a program, in a call of given rows."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fdjax.kernels.layer_program import config
from fdjax.kernels.matmul.params import LibraryConfig, MatmulConfig
from fdjax.kernels.weight import Weight
from fdjax.models.program.instructions import Linear
from fdjax.models.program.views import RowCounts
from fdjax.notation import Array

SLICE_ROWS = 2048
"""Rows of which the library writes gate and up at a time, before they become one.

Four slices take 2,720 us where 8,192 rows of Llama-3-8B at once take 2,886 (an H200).
No table's: a step's memory is planned by it, which must not differ between devices.
"""


@dataclass(frozen=True)
class Gemms:
    """The linear maps of a call.

    Attributes:
        rows: of the call.
        parameters: by path; shapes and types are enough.
    """

    rows: RowCounts
    parameters: Mapping[str, Array | Weight]
    # Layers have GEMMs of the same few shapes, and a choice looks for a file.
    _choose: Callable[..., MatmulConfig] = field(
        init=False, default_factory=lambda: functools.cache(config.choose)
    )

    def config(self, one: Linear) -> MatmulConfig:
        """The kernel of a linear map, and its launch config."""
        weight = self.parameters[one.weight]
        n, k = weight.shape
        return self._choose(
            self.rows.of(one.reads[0]),
            n,
            k,
            dtype=weight.dtype,
            gate=one.gate,
            bias=one.bias is not None,
            beside_attention=one.writes[0].name == "qkv" and not self.rows.prompts,
        )

    def slice_rows(self, one: Linear) -> int:
        """Rows of which the library writes gate and up at a time; 0: it does not."""
        if one.gate is None or not isinstance(self.config(one), LibraryConfig):
            return 0
        return min(self.rows.of(one.reads[0]), SLICE_ROWS)

    def scratch(self, one: Linear) -> int:
        """Elements of gate and up, where the library writes them."""
        return self.slice_rows(one) * self.parameters[one.weight].shape[0]
