"""`EngineSequence`: a request on its way, as the host knows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fdjax.engine.beam_programs import Prepared
from fdjax.engine.group import Group, Samples
from fdjax.engine.matcher import Matcher
from fdjax.engine.origin import Origin
from fdjax.engine.pooled_prompt import PooledPrompt
from fdjax.engine.request import Request
from fdjax.engine.scored_prompt import ScoredPrompt
from fdjax.engine.search import Search
from fdjax.generate.masks import num_words
from fdjax.generate.plan import serving_level
from fdjax.memory.kv import KVLayout
from fdjax.memory.prefix import PrefixKeys
from fdjax.models.config import ModelConfig


@dataclass(eq=False)
class EngineSequence:
    """A request and how far it has come.

    The host launches steps ahead of their results, so it knows two lengths: that of
    `tokens`, which it has read, and `num_launched`, which the device will have reached
    when it has done all that was launched (or less, if the request ends before).

    Attributes:
        request: what was asked for.
        origin: on whose behalf it is; the samples of a request share one.
        seed: of its draws, where the request brings none.
        keys: of its full pages.
        tokens: the prompt, and the output as far as it was read.
        pages: of the KV array, in order; empty while it waits.
        num_promised: pages that its prompt will take, chunk by chunk.
        row: of the batch; `None` while it waits. Beams have none: theirs is past the
            end, where nothing is seated.
        num_prefilled: tokens whose keys and values prefill has launched, or that were
            found in the cache.
        turn: place in the order in which sequences were let in first; -1 before.
        num_let_in: tokens it had when it was let in last.
        num_launched: tokens once everything launched is done; 0 before the first one
            was sampled.
        num_remembered: pages made findable.
        num_awaited: its first pages that it will share, once others have computed those
            that are on their way; as it was when it was looked for them last.
        group: what it is a branch of, with the other samples of its prompt; or its
            beams, where it is a search, whose own tokens are the prompt alone.
        matcher: says which tokens may come next; `None` lets all come.
        held: a token is on its way that its matcher has not seen: what may follow it is
            not known, and so no step can be launched ahead.
        ended: nothing more comes of it.
        admitted_s: when it was let in first, by `time.monotonic`; `None` before.
        num_cached: tokens found in the cache then; `None` before.
        is_search: its branches are beams.
        priority: the origin's; while it runs, perhaps a more urgent one, by waiting.
        num_prompt: tokens of the prompt.
        limit: tokens of prompt and output together.
        plan_level: which of `SERVING_PLANS` its row needs at least.
        scored: the log-probabilities of the prompt; `None` where nobody asked for them.
        pooled: the vector of the prompt, where that is what was asked for.
    """

    request: Request
    origin: Origin
    seed: int
    keys: PrefixKeys
    tokens: list[int]
    pages: list[int] = field(default_factory=list[int])
    num_promised: int = 0
    row: int | None = None
    turn: int = -1
    num_let_in: int = 0
    num_prefilled: int = 0
    num_launched: int = 0
    num_remembered: int = 0
    num_awaited: int = 0
    group: Group = field(default_factory=Samples)
    matcher: Matcher | None = None
    held: bool = False
    ended: bool = False
    admitted_s: float | None = None
    num_cached: int | None = None
    # Plain fields: the scheduler asks every sequence in every step.
    is_search: bool = field(init=False)
    priority: int = field(init=False)
    num_prompt: int = field(init=False)
    limit: int = field(init=False)
    plan_level: int = field(init=False)
    scored: ScoredPrompt | None = field(init=False, default=None)
    pooled: PooledPrompt | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.is_search = self.request.beams is not None
        self.priority = self.origin.priority
        self.num_prompt = len(self.request.prompt)
        self.limit = self.num_prompt + self.request.max_tokens
        # Beams are sampled by themselves.
        self.plan_level = 0 if self.is_search else serving_level(self.request.params)
        num_top = self.request.params.prompt_logprobs
        if num_top is not None:
            self.scored = ScoredPrompt(self.num_prompt, num_top)
        if self.request.pooling is not None:
            self.pooled = PooledPrompt(self.num_prompt, self.request.pooling)

    @property
    def reads_cache(self) -> bool:
        """Cached pages may stand for its first tokens: nobody asks what they give."""
        if self.pooled is not None:
            return not self.pooled.reads_all
        return self.scored is None or not self.scored.num_missing

    @property
    def output(self) -> list[int]:
        """The tokens made so far, as far as they were read."""
        return self.tokens[self.num_prompt :]

    @property
    def goes_on(self) -> bool:
        """Its prompt is launched, and tokens to come are not: held back, perhaps."""
        return 0 < self.num_launched < self.limit

    @property
    def is_decoding(self) -> bool:
        """Another step of its row may make another token of it."""
        return self.goes_on and not self.is_search and not self.held

    @property
    def search(self) -> Search:
        """`group`, of a sequence that is known to be a beam search."""
        assert isinstance(self.group, Search)
        return self.group

    @property
    def is_searching(self) -> bool:
        """Another step of its beams may find more.

        Where candidates are judged, a step chooses what the one before has found, and
        so there is one more, which feeds nothing.
        """
        if not self.is_search or self.search.held:
            return False
        is_last = self.num_launched == self.limit and self.search.judges is not None
        return self.goes_on or is_last

    @property
    def is_read(self) -> bool:
        """No token of it is on its way."""
        return self.num_launched == len(self.tokens)

    @property
    def is_settled(self) -> bool:
        """Nothing of it is on its way, and what may come next is known.

        What a search has on the way is of no use to one that begins anew.
        """
        if self.num_launched == 0 or self.is_search:
            return True
        return self.is_read and not self.held

    def steps_of(self, num_steps: int) -> int:
        """How many of the steps of a launch it takes part in."""
        return num_steps if self.matcher is None else 1

    def launch(self, num_tokens: int) -> None:
        """Has `num_tokens` more on their way."""
        self.num_launched += num_tokens
        self.held = self.matcher is not None
        if self.is_search:
            self.search.launch()

    def move(self, moves: Mapping[int, int]) -> None:
        """Names pages by where their contents are now.

        The list of pages is another one then, by which page tables that were made from
        it know.

        Args:
            moves: from which page to which they went.
        """
        if not moves.keys().isdisjoint(self.pages):
            self.pages = [moves.get(page, page) for page in self.pages]
        self.group.move(moves)

    def seat(self, row: int, found: Sequence[int], *, page_size: int) -> None:
        """Gives it a row, and the pages that were found for its first tokens.

        Args:
            row: of the batch.
            found: full pages.
            page_size: tokens of each.
        """
        self.row, self.pages = row, [*found]
        self.num_prefilled = len(found) * page_size
        self.num_remembered = len(found)
        self.num_let_in = len(self.tokens)

    def let_in(self, now_s: float) -> None:
        """Notes the first time that it has a row; no chunk of it was launched yet."""
        if self.admitted_s is None:
            self.admitted_s, self.num_cached = now_s, self.num_prefilled

    def wait(self) -> None:
        """Back to the queue: what was computed is given up, what was read is kept."""
        self.num_prefilled = self.num_launched = self.num_remembered = 0
        self.held = False
        if self.scored is not None:
            self.scored.wait()
        if self.pooled is not None:
            self.pooled.wait()
        self.group.restart()


def make_group(
    request: Request, layout: KVLayout, config: ModelConfig, *, count: int = 1
) -> Group:
    """Of the samples of a prompt, or of a search's beams.

    Args:
        request: of the first sample, or of the search.
        layout: of the KV array.
        config: of the model.
        count: samples; a search has one sequence.
    """
    if request.beams is None:
        num_prompt, page_size = len(request.prompt), layout.page_size
        return Samples(num_prompt, page_size=page_size, count=count)
    assert count == 1, count
    return Search(
        request.limited_beams,
        layout.page_size,
        num_words(config.embedding.vocab_size),
        request.matcher,
        Prepared() if request.programs is None else request.programs,
    )


def make_sequence(
    request: Request, origin: Origin, seed: int, page_size: int, group: Group
) -> EngineSequence:
    """A sequence at its beginning.

    Args:
        request: what was asked for.
        origin: on whose behalf.
        seed: of its draws, where the request brings none.
        page_size: tokens of a page.
        group: of `make_group`.
    """
    matcher = request.matcher() if request.beams is None else None
    keys, tokens = PrefixKeys(page_size, origin.salt), list(request.prompt)
    return EngineSequence(
        request, origin, seed, keys, tokens, matcher=matcher, group=group
    )


@dataclass(frozen=True)
class PromptChunk:
    """Tokens that one prefill call computes: `sequence.tokens[start:stop]`."""

    sequence: EngineSequence
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Tokens."""
        return self.stop - self.start

    @property
    def tokens(self) -> list[int]:
        """What it computes."""
        return self.sequence.tokens[self.start : self.stop]

    @property
    def is_last(self) -> bool:
        """The sequence's next token can be sampled after it."""
        return self.stop == len(self.sequence.tokens)
