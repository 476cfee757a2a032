"""What the kernels' cuts count with: an H200's numbers, of an H100 too."""

NUM_SMS = 132
SHARED_BYTES = 227 * 1024
"""Shared memory that a block may use."""

CLUSTERS = {2: 66, 3: 39, 4: 29}
"""How many clusters of so many blocks run at once, a block on each SM.

A cluster has room only within a group of some 16 SMs, and which of them are
switched off differs from one machine to another: one H200 had room for 66, 39, 30, 22,
17, 15 and 15 of 2 to 8 blocks (cudaOccupancyMaxActiveClusters). What does not fit waits
until others have ended.
"""
