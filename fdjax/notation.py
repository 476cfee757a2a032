"""The axis letters of every shape in fdjax, in one place.

| letter | meaning |
|---|---|
| `B` | rows of a batch: one request each |
| `S` | query tokens of a row in one prefill call (padded to a bucket) |
| `T` | tokens of a call, rows and positions flattened (`T = B * S`) |
| `U` | tokens of a call whose hidden states are wanted: all, or one of each row |
| `E` | hidden size |
| `F` | intermediate (feed-forward) size |
| `V` | vocabulary size |
| `Hq`, `Hkv` | query heads, key/value heads; `Hq = G * Hkv` |
| `H` | heads of a fused QKV GEMM: `Hq + 2 * Hkv` |
| `D` | head size |
| `R` | rotated dimensions of a head; `R2 = R / 2` frequencies |
| `L` | layers |
| `P` | pages of the KV array |
| `Z` | slots of a page (page size, in tokens) |
| `W` | width of a page table: pages a row may use |
| `M`, `N`, `K` | a GEMM `[M, K] x [N, K] -> [M, N]` |

The KV array is `[P, L, 2, Z, Hkv, D]`: one page is one contiguous block that
holds all layers of its `Z` tokens.
"""

from jax import Array
from jaxtyping import Bool, Float, Int32, Int64, UInt32

__all__ = ["Array", "Bool", "Float", "Int32", "Int64", "UInt32"]
