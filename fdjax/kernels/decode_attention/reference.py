"""The definition of `decode_attention`, in float32."""

from fdjax.kernels.paged import attend, gather_pages
from fdjax.notation import Array, Float, Int32


def decode_attention(
    q: Float[Array, "B Hq D"],
    kv: Float[Array, "P L 2 Z Hkv D"],
    page_table: Int32[Array, "B W"],
    lengths: Int32[Array, " B"],
    slopes: Float[Array, " Hq"] | None,
    *,
    layer: int,
    scale: float,
    soft_cap: float | None,
    window: int | None,
) -> Float[Array, "B Hq D"]:
    """See `fdjax.kernels.decode_attention.decode_attention`."""
    k, v = gather_pages(kv, page_table, layer=layer)
    positions = lengths[:, None] - 1
    return attend(
        q[:, None],
        k,
        v,
        positions,
        lengths,
        slopes,
        scale=scale,
        soft_cap=soft_cap,
        window=window,
    )[:, 0]
