"""The arguments of `rope_kv_write`."""

from fdjax.notation import Array, Float, Int32
from fdjax.pytree import pytree, static

type Written = tuple[Float[Array, "T Hq D"], Float[Array, "P L 2 Z Hkv D"]]
"""The rotated queries and the updated KV array."""


@pytree
class RopeKVWrite:
    """One call of `rope_kv_write`.

    Attributes:
        qkv: the fused product, heads in the order q, k, v; `H = Hq + 2 * Hkv`.
        kv: the KV array. Donate it, and it is updated in place.
        positions: position of each token in its sequence.
        slots: where each token goes, `page * Z + slot`; negative writes nothing
            (padding).
        frequencies: `theta ** (-2 i / R)`, scaled; empty where positions enter
            otherwise (then only k and v are written).
        layer: which layer of each page.
        interleaved: pairs are (0, 1), (2, 3), ... instead of (i, i + R / 2).
    """

    qkv: Float[Array, "T H D"]
    kv: Float[Array, "P L 2 Z Hkv D"]
    positions: Int32[Array, " T"]
    slots: Int32[Array, " T"]
    frequencies: Float[Array, " R2"]
    layer: int = static()
    interleaved: bool = static()
