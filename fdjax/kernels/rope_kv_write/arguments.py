"""The arguments of `rope_kv_write`."""

from fdjax.kernels.paged import KVCache, KVLayer
from fdjax.notation import Array, Float, Int32
from fdjax.pytree import pytree, static

type Written = tuple[Float[Array, "T Hq D"], KVCache]
"""The rotated queries and the updated cache."""


@pytree
class RopeKVWrite:
    """One call of `rope_kv_write`.

    Attributes:
        qkv: of a fused QKV GEMM, heads in the order q, k, v; `H = Hq + 2 * Hkv`.
        kv: the layer to write to. Donate its cache, and it is updated in place.
        positions: position of each token in its sequence.
        slots: where each token goes, `page * Z + slot`; negative writes nothing
            (padding).
        frequencies: `theta ** (-2 i / R)`, scaled; empty where positions enter
            otherwise (then only k and v are written).
        interleaved: pairs are (0, 1), (2, 3), ... instead of (i, i + R / 2).
    """

    qkv: Float[Array, "T H D"]
    kv: KVLayer
    positions: Int32[Array, " T"]
    slots: Int32[Array, " T"]
    frequencies: Float[Array, " R2"]
    interleaved: bool = static()
