"""Times of attention whose rows share what they read: each by itself, and once."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from fdjax.kernels.beam_attention import OP, BeamAttention, BeamView
from fdjax.kernels.decode_attention import DecodeAttention
from fdjax.kernels.paged import PageView
from fdjax.kernels.shared_prefix import Group, plan_prefixes, plan_prompts
from fdjax.kernels.tuning import attention_times as times
from fdjax.kernels.tuning.attention_times import PAGE_SIZE
from fdjax.kernels.tuning.shared_worth import OWN, PROMPT_HEADS, WIDTH, Sharing
from fdjax.notation import Array, Float


class SharedTimes:
    """Measures layers on the GPU."""

    def __init__(self) -> None:
        self._rows: dict[Sharing, DecodeAttention] = {}
        self._prompts: dict[tuple[int, int], BeamAttention] = {}

    def rows(self, sharing: Sharing, once: int) -> float:
        """Microseconds of a layer that reads once what the first groups share.

        Raises:
            Unsupported: no CUDA kernel serves it here.
        """
        if sharing not in self._rows:
            self._rows.clear()  # before the next one takes its memory
            self._rows[sharing] = _of_rows(sharing)
        call = self._rows[sharing]
        if once:
            call = dataclasses.replace(call, pages=_sharing(call.pages, sharing, once))
        return times.microseconds(times.attend, call)

    def prompts(self, count: int, tokens: int, *, once: bool) -> float:
        """Microseconds of a layer of beams.

        Raises:
            Unsupported: see `rows`.
        """
        self._rows.clear()
        if (count, tokens) not in self._prompts:
            self._prompts.clear()
            self._prompts[count, tokens] = _of_beams(count, tokens)
        call = self._prompts[count, tokens]
        if once:
            prefixes = plan_prompts(
                [tokens] * count, width=WIDTH, num_kv_heads=PROMPT_HEADS, group=1
            )
            beams = dataclasses.replace(call.beams, prefixes=prefixes)
            call = dataclasses.replace(call, beams=beams)
        return times.microseconds(_attend_beams, call)


def _attend_beams(call: BeamAttention) -> Float[Array, "B Hq D"]:
    with OP.using("cuda"):
        return OP(call)


def _of_rows(sharing: Sharing) -> DecodeAttention:
    """Where each row reads all of its pages."""
    own = OWN // PAGE_SIZE
    shared = [tokens // PAGE_SIZE for _, tokens in sharing.groups]
    counts = [rows for rows, _ in sharing.groups]
    num_pages = sum(shared) + sum(counts) * own
    free = iter(np.random.default_rng(3).permutation(num_pages).tolist())
    width = max(shared) + own
    tables: list[list[int]] = []
    for rows, pages in zip(counts, shared, strict=True):
        prefix = [next(free) for _ in range(pages)]
        tables += [
            [*prefix, *(next(free) for _ in range(own)), *[num_pages] * width][:width]
            for _ in range(rows)
        ]
    lengths = [tokens + OWN for rows, tokens in sharing.groups for _ in range(rows)]
    view = PageView.decoding(
        jnp.asarray(tables, jnp.int32), jnp.asarray(lengths, jnp.int32)
    )
    return DecodeAttention(
        times.made_queries(len(tables)),
        times.made_cache(num_pages).layer(0),
        view,
        times.plain_scores(),
        unified=None,
    )


def _sharing(pages: PageView, sharing: Sharing, once: int) -> PageView:
    groups: list[Group] = []
    first = 0
    for rows, tokens in sharing.groups[:once]:
        groups.append(Group(tuple(range(first, first + rows)), 0, tokens, level=0))
        first += rows
    prefixes = plan_prefixes(
        groups,
        rows=pages.num_rows,
        num_kv_heads=times.NUM_KV_HEADS,
        group=times.NUM_HEADS // times.NUM_KV_HEADS,
    )
    return PageView.decoding(pages.page_table, pages.lengths, prefixes)


def _of_beams(count: int, tokens: int) -> BeamAttention:
    """Where each beam reads its prompt; each step's key is some beam's."""
    of_prompt, own, rows = tokens // PAGE_SIZE, OWN // PAGE_SIZE, count * WIDTH
    random = np.random.default_rng(4)
    ids = random.permutation(count * of_prompt + rows * own).astype(np.int32)
    prompts, others = np.split(ids, [count * of_prompt])
    beams = BeamView(
        jnp.asarray(prompts.reshape(count, of_prompt)),
        jnp.full(count, tokens, jnp.int32),
        jnp.asarray(random.integers(0, WIDTH, (rows, OWN)), jnp.int32),
    )
    pages = PageView.decoding(
        jnp.asarray(others.reshape(rows, own)), jnp.full(rows, OWN, jnp.int32)
    )
    return BeamAttention(
        times.made_queries(rows, num_heads=PROMPT_HEADS),
        times.made_cache(len(ids), num_kv_heads=PROMPT_HEADS).layer(0),
        pages,
        times.plain_scores(),
        beams,
    )
