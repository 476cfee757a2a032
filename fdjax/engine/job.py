"""`Job`: a request on its way, as the host knows it."""

from dataclasses import dataclass, field

from fdjax.engine.group import Group
from fdjax.engine.matcher import Matcher
from fdjax.engine.origin import Origin
from fdjax.engine.request import Request
from fdjax.engine.scored_prompt import ScoredPrompt
from fdjax.memory.prefix import PrefixKeys


@dataclass(eq=False)
class Job:
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
        row: of the batch; `None` while it waits. Beams have none: theirs is past the
            end, where nothing is seated.
        num_prefilled: tokens whose keys and values prefill has launched, or that were
            found in the cache.
        turn: place in the order in which jobs were let in first; -1 before.
        num_let_in: tokens it had when it was let in last.
        num_launched: tokens once everything launched is done; 0 before the first one
            was sampled.
        num_remembered: pages made findable.
        group: the beams, where it is a beam search: its tokens are the prompt alone.
        matcher: says which tokens may come next; `None` lets all come.
        held: a token is on its way that its matcher has not seen: what may follow it is
            not known, and so no step can be launched ahead.
        ended: nothing more comes of it.
        admitted_s: when it was let in first, by `time.monotonic`; `None` before.
        num_cached: tokens found in the cache then; `None` before.
        priority: the origin's; while it runs, perhaps a more urgent one, by waiting.
        num_prompt: tokens of the prompt.
        limit: tokens of prompt and output together.
        scored: the log-probabilities of the prompt; `None` where nobody asked for them.
    """

    request: Request
    origin: Origin
    seed: int
    keys: PrefixKeys
    tokens: list[int]
    pages: list[int] = field(default_factory=list[int])
    row: int | None = None
    turn: int = -1
    num_let_in: int = 0
    num_prefilled: int = 0
    num_launched: int = 0
    num_remembered: int = 0
    group: Group | None = None
    matcher: Matcher | None = None
    held: bool = False
    ended: bool = False
    admitted_s: float | None = None
    num_cached: int | None = None
    # Plain fields: the scheduler asks every job in every step.
    priority: int = field(init=False)
    num_prompt: int = field(init=False)
    limit: int = field(init=False)
    scored: ScoredPrompt | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.priority = self.origin.priority
        self.num_prompt = len(self.request.prompt)
        self.limit = self.num_prompt + self.request.max_tokens
        num_top = self.request.params.prompt_logprobs
        if num_top is not None:
            self.scored = ScoredPrompt(self.num_prompt, num_top)

    @property
    def reads_cache(self) -> bool:
        """Cached pages may stand for its first tokens: nobody asks for their scores."""
        return self.scored is None or not self.scored.num_missing

    @property
    def output(self) -> list[int]:
        """The tokens made so far, as far as they were read."""
        return self.tokens[self.num_prompt :]

    @property
    def is_prefilling(self) -> bool:
        """It has a row, and tokens whose keys and values are not launched."""
        return self.row is not None and self.num_launched == 0

    @property
    def is_decoding(self) -> bool:
        """Another step of its row may make another token of it."""
        return self._goes_on and self.group is None and not self.held

    @property
    def is_searching(self) -> bool:
        """Another step of its beams may find more."""
        return self._goes_on and self.group is not None

    @property
    def is_read(self) -> bool:
        """No token of it is on its way."""
        return self.num_launched == len(self.tokens)

    def steps_of(self, num_steps: int) -> int:
        """How many of the steps of a launch it takes part in."""
        return num_steps if self.matcher is None else 1

    def launch(self, num_tokens: int) -> None:
        """Has `num_tokens` more on their way."""
        self.num_launched += num_tokens
        self.held = self.matcher is not None

    def let_in(self, now_s: float) -> None:
        """Notes the first time that it has a row; no chunk of it was launched yet."""
        if self.admitted_s is None:
            self.admitted_s, self.num_cached = now_s, self.num_prefilled

    def wait(self) -> None:
        """Back to the queue: what was computed is given up, what was read is kept."""
        self.pages, self.row = [], None
        self.num_prefilled = self.num_launched = self.num_remembered = 0
        self.held = False
        if self.scored is not None:
            self.scored.wait()
        if self.group is not None:
            self.group.restart()

    @property
    def _goes_on(self) -> bool:
        return 0 < self.num_launched < self.limit


@dataclass(frozen=True)
class Chunk:
    """Tokens of a job that one prefill call computes: `job.tokens[start:stop]`."""

    job: Job
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Tokens."""
        return self.stop - self.start

    @property
    def tokens(self) -> list[int]:
        """What it computes."""
        return self.job.tokens[self.start : self.stop]

    @property
    def is_last(self) -> bool:
        """The job's next token can be sampled after it."""
        return self.stop == len(self.job.tokens)
