"""Who does what of a step's attention over rows with several new tokens each."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from fdjax.cli.plan_pictures import Bars
from fdjax.cli.planned_heads import check_prompts
from fdjax.config import Attention
from fdjax.errors import ConfigError
from fdjax.kernels.chip import chip
from fdjax.kernels.paged import ScoreSpec, handlers_window
from fdjax.kernels.prefill_plan.tiles import (
    KEY_TILE,
    PIECE_COST,
    TILE_ROWS,
    most_tiles,
    room_of,
    work_of,
)

# Each is compared with each: a second, and some 100 MB.
_MAX_TILES = 2**14


@dataclasses.dataclass(frozen=True)
class Prompt:
    """New tokens of a row, after those that it has.

    Attributes:
        new: how many.
        before: tokens before them.
    """

    new: int
    before: int


@dataclasses.dataclass(frozen=True)
class PromptSharing:
    """The work of an H200's blocks: tiles of queries, and pieces of their keys.

    Attributes:
        prompts: the rows.
        work: of `work_of`, without what is not used.
        num_kv_heads: each does every tile.
        tile_tokens: of a tile, at most.
    """

    prompts: tuple[Prompt, ...]
    work: np.ndarray[Any, np.dtype[np.int32]]
    num_kv_heads: int
    tile_tokens: int

    @property
    def is_piece(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Of each item, whether it has a part of its tile's keys only."""
        return np.repeat(self.work[:, 6] >= 0, self.num_kv_heads)

    @property
    def costs(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Of each item, a head of a tile or of a piece: in tiles of keys."""
        begin, end = self.work[:, 4], self.work[:, 5]
        keys = -(-end // KEY_TILE) - begin // KEY_TILE + PIECE_COST
        return np.repeat(keys, self.num_kv_heads).astype(np.int64)

    @property
    def takers(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Of each item, the block that takes it: there and back again."""
        blocks = chip().num_sms
        turn, place = np.divmod(np.arange(len(self.costs)), blocks)
        return np.where(turn % 2 == 0, place, blocks - 1 - place)

    def bars(self) -> Bars:
        """What each block does, to be drawn."""
        return Bars(self.takers, self.costs, self.is_piece)

    def lines(self) -> dict[str, str]:
        """In words."""
        tiles = int((self.work[:, 7] > 0).sum())
        pieces = int((self.work[:, 6] >= 0).sum())
        new = [prompt.new for prompt in self.prompts]
        lines = {
            "rows": f"{len(new)}, of {min(new):,} to {max(new):,} new tokens",
            "tiles of queries": f"{tiles}, of {self.tile_tokens} tokens at most",
        }
        if pieces:
            lines["pieces of tiles' keys"] = f"{pieces}"
        lines["items"] = f"{len(self.costs)}, one for each key/value head"
        lines["busiest block"] = self.bars().told("block", chip().num_sms)
        return lines


def share(attention: Attention, prompts: tuple[Prompt, ...]) -> PromptSharing:
    """The work that a step with such rows would have on an H200.

    A block is taken to go through its items by itself, as all do but those that work in
    pairs, where two neighbours go through the keys of both.

    Args:
        attention: of a layer, whose heads and window.
        prompts: the rows.

    Raises:
        ConfigError: no kernel has such heads; or they have too many tiles to be listed.
    """
    check_prompts(attention)
    scores = ScoreSpec(
        None, attention.head_dim**-0.5, soft_cap=None, window=attention.window
    )
    tile_tokens = max(TILE_ROWS * attention.num_kv_heads // attention.num_heads, 1)
    new = np.array([prompt.new for prompt in prompts], np.int32)
    starts = np.array([prompt.before for prompt in prompts], np.int32)
    num_queries = int(new.sum())
    most = most_tiles(num_queries, len(prompts), tile_tokens)
    if most > _MAX_TILES:
        raise ConfigError(
            f"--plan: prompts of {num_queries:,} new tokens have up to {most:,} tiles "
            f"of queries, and a plan is shown of {_MAX_TILES:,}; give fewer new tokens"
        )
    work = work_of(
        jnp.asarray(starts + new),
        jnp.asarray(starts),
        jnp.asarray(np.cumsum(new) - new),
        jnp.asarray(handlers_window(scores), jnp.int32),
        num_queries=num_queries,
        max_tokens=int((starts + new).max()),
        tile_tokens=tile_tokens,
        room=room_of(most, attention.num_kv_heads, chip().num_sms),
    )
    used = np.asarray(work)
    used = used[used[:, 3] > 0]
    return PromptSharing(prompts, used, attention.num_kv_heads, tile_tokens)
