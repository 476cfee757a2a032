"""What each tenant may use, and what it has used."""

import contextlib
import dataclasses
import math
import time
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass

from fdjax.serve.http.errors import too_many

type Clock = Callable[[], float]

_MINUTE_S = 60
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Quotas:
    """How much a tenant may use; `None` is no limit.

    Attributes:
        requests_per_minute: requests of HTTP that ask for work.
        tokens_per_minute: tokens of prompts, and tokens made.
        max_running_samples: that hold a row together; others wait.
        max_queued_samples: that wait for a row together.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_running_samples: int | None = None
    max_queued_samples: int | None = None


QUOTAS = tuple(field.name for field in dataclasses.fields(Quotas))


class Allowance:
    """So much a minute: all of it at once, and then as much as comes back.

    It comes back evenly. What nobody knew before may be spent beyond it, and is waited
    for afterwards: in the long run, no more is used than it says.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._per_minute: int | None = None
        self._used = 0.0
        self._then = clock()

    @property
    def per_minute(self) -> int | None:
        """How much; `None` is no limit, and counts nothing."""
        return self._per_minute

    @per_minute.setter
    def per_minute(self, per_minute: int | None) -> None:
        self.spend(0)
        self._per_minute = per_minute

    @property
    def used(self) -> int:
        """What has not come back yet."""
        return math.ceil(self._left_over() - _ROUNDING)

    def wait_s(self, amount: int) -> float:
        """Seconds until so much may be used; more than a minute's wants all of it."""
        if self._per_minute is None:
            return 0.0
        over = self._left_over() + min(amount, self._per_minute) - self._per_minute
        return over * _MINUTE_S / self._per_minute if over > _ROUNDING else 0.0

    def spend(self, amount: int) -> None:
        """Uses it; less than nothing gives it back."""
        self._used, self._then = max(self._left_over() + amount, 0.0), self._clock()

    def _left_over(self) -> float:
        if self._per_minute is None:
            return 0.0
        back = (self._clock() - self._then) * self._per_minute / _MINUTE_S
        return max(self._used - back, 0.0)


class Account:
    """What one tenant has used since the server knows it.

    Args:
        name: the tenant's.
        clock: seconds.

    Attributes:
        num_requests: that were counted; not those that were refused here.
        prompt_tokens: read.
        output_tokens: made.
        num_refused: requests, by the quota that was used up.
    """

    def __init__(self, name: str, clock: Clock = time.monotonic) -> None:
        self._name = name
        self._allowances: dict[str, Allowance] = {
            "requests_per_minute": Allowance(clock),
            "tokens_per_minute": Allowance(clock),
        }
        self.num_requests = 0
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.num_refused: Counter[str] = Counter()

    @property
    def owes(self) -> bool:
        """Something of what was used has not come back."""
        return any(allowance.used for allowance in self._allowances.values())

    def limit(self, quotas: Quotas) -> None:
        """Says what it may use from now on; what was used stays used."""
        for quota, allowance in self._allowances.items():
            allowance.per_minute = getattr(quotas, quota)

    def request(self) -> None:
        """Counts a request.

        Raises:
            ApiError: 429, a minute's requests are used up.
        """
        self._take("requests_per_minute", 1)
        self.num_requests += 1

    @contextlib.contextmanager
    def prompts(self, num_tokens: int) -> Generator[None]:
        """Counts the tokens of a request's prompts, unless the block raises.

        Raises:
            ApiError: 429, a minute's tokens are used up, or these are too many now.
        """
        self._take("tokens_per_minute", num_tokens)
        self.prompt_tokens += num_tokens
        try:
            yield
        except BaseException:  # they were not read
            self._allowances["tokens_per_minute"].spend(-num_tokens)
            self.prompt_tokens -= num_tokens
            raise

    def made(self, num_tokens: int) -> None:
        """Counts tokens of outputs, be there allowance for them or not."""
        self._allowances["tokens_per_minute"].spend(num_tokens)
        self.output_tokens += num_tokens

    def _take(self, quota: str, amount: int) -> None:
        allowance = self._allowances[quota]
        wait_s = allowance.wait_s(amount)
        if wait_s:
            self.num_refused[quota] += 1
            raise too_many(
                f"{quota} of the key {self._name!r} is {allowance.per_minute}, of "
                f"which {allowance.used} are used, and this request wants {amount}",
                retry_s=math.ceil(wait_s),
            )
        allowance.spend(amount)
