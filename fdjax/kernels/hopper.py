"""What an H100 or H200 (SXM) has of everything: launch configs are computed from it."""

NUM_SMS = 132
"""Streaming multiprocessors (SMs) of the GPU."""

SHARED_BYTES = 227 * 1024
"""Shared memory that one block may use: nearly all that an SM has."""

CLUSTERS = {2: 66, 3: 39, 4: 29}
"""How many clusters of 2, 3 and 4 thread blocks run at once, with one block on each SM.

All blocks of a cluster run in one GPC, a group of some 16 SMs. How many SMs of each GPC
are switched off differs from one GPU to another, and so does how many clusters fit: one
H200 had room for 66, 39, 30, 22, 17, 15 and 15 clusters of 2 to 8 blocks
(cudaOccupancyMaxActiveClusters). Clusters that do not fit wait until others have ended.
"""
