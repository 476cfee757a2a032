"""The sizes of the GPU a program is traced for; launch configs follow from them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fdjax.kernels.tuning.files import integer
from fdjax.kernels.tuning.parts import Part

SHARED_BYTES = 227 * 1024
"""Shared memory that one block may use on every GPU of compute capability 9.0."""

_SIZES, _MORE_SIZES = (2, 3, 4), (5, 6, 7, 8)


@dataclass(frozen=True)
class Chip:
    """What differs from one Hopper GPU to another; by default an H100 or H200 (SXM).

    Attributes:
        num_sms: streaming multiprocessors (SMs).
        clusters: how many clusters of so many thread blocks run at once, with one
            block on each SM: of 2, 3 and 4, and of up to 8 where it is known. All
            blocks of a cluster run in one GPC, a group of some 16 SMs. How many SMs of
            each GPC are switched off differs from one GPU to another, and so does how
            many clusters fit: two H200s had room for 66, 39, 30, 22, 17, 15 and 15
            clusters of 2 to 8 blocks (cudaOccupancyMaxActiveClusters). The default has
            29 of 4, one fewer, for GPUs whose GPCs leave room for no more: clusters
            that do not fit wait until others have ended.
    """

    num_sms: int = 132
    clusters: Mapping[int, int] = field(
        default_factory=lambda: {2: 66, 3: 39, 4: 29, 5: 22, 6: 17, 7: 15, 8: 15}
    )

    def at_once(self, blocks: int) -> int:
        """Clusters of so many blocks that run at once.

        Raises:
            KeyError: of more than 4 blocks, where it is not known.
        """
        return self.num_sms if blocks == 1 else self.clusters[blocks]


def _chip(part: Mapping[str, Any]) -> Chip:
    num_sms = integer(part, "num_sms", 1)
    clusters = part["clusters"]
    if not isinstance(clusters, dict):
        raise ValueError("clusters is no object")
    sizes = [*_SIZES, *(size for size in _MORE_SIZES if str(size) in clusters)]
    if set(clusters) != set(map(str, sizes)):
        raise ValueError(
            f"clusters has {sorted(clusters)}; it is of 2, 3, 4 and up to 8 blocks"
        )
    fit = {size: integer(clusters, str(size), 1, num_sms // size) for size in sizes}
    return Chip(num_sms, fit)


PART = Part("chip", frozenset({"num_sms", "clusters"}), _chip, Chip())


def chip() -> Chip:
    """The GPU traced for: the part `chip` of its table.

    Raises:
        ConfigError: a table of the device cannot be read.
    """
    return PART.find()
