"""Which widths of page tables need programs of their own."""

from collections.abc import Mapping

from fdjax.engine.buckets import Buckets
from fdjax.kernels.decode_attention import config as decode_config
from fdjax.memory.kv import KVLayout
from fdjax.models.config import ModelConfig


def widths_by_rows(
    config: ModelConfig, layout: KVLayout, buckets: Buckets
) -> Mapping[int, tuple[int, ...]]:
    """By number of rows, the widest table of each launch config of decode attention.

    Attention reads of a table what its rows have, so that one width is as good as
    another with which it is launched in the same way; half of them are, and programs
    take time to start.

    Args:
        config: the model.
        layout: of the KV array.
        buckets: of which all rows and widths are looked at.
    """
    group = config.num_heads // config.num_kv_heads

    def launch_config(rows: int, width: int) -> decode_config.LaunchConfig:
        sizes = decode_config.Sizes.of(
            rows,
            config.num_kv_heads,
            width * layout.page_size,
            head_dim=config.head_dim,
            group=group,
            page_size=layout.page_size,
        )
        return decode_config.heuristic(sizes)

    return {
        rows: tuple(
            sorted(
                {launch_config(rows, width): width for width in buckets.widths}.values()
            )
        )
        for rows in buckets.rows
    }
