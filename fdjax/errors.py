"""The errors fdjax raises on purpose: what was wrong, both numbers, and the remedy."""


def to_install(extra: str) -> str:
    """What to do where a package of an extra is missing: as the README does it.

    By the file, not by `-e '.[...]'`, for which uv compiles the extension anew.
    """
    what = f"-r pyproject.toml --extra {extra}"
    return f"in fdjax's folder, run: uv pip install -c constraints.txt {what}"


class ConfigError(ValueError):
    """A model description or a setting that fdjax cannot serve as it stands."""


class CheckpointError(ValueError):
    """A checkpoint whose files do not hold the weights its configuration promises.

    Attributes:
        problems: every fault found, one sentence each.
    """

    def __init__(self, source: str, problems: list[str]) -> None:
        self.problems = tuple(problems)
        lines = "\n".join(f"  - {problem}" for problem in problems)
        count = f"{len(problems)} problem" + ("s" if len(problems) != 1 else "")
        super().__init__(f"{source}: {count} with the checkpoint\n{lines}")


class MemoryBudgetError(ValueError):
    """A plan that needs more memory than its budget; raised before allocation."""


class RequestError(ValueError):
    """A request that cannot be served: names the field, the value and the limit."""


class QueueFullError(RuntimeError):
    """As many requests wait as may; the same request may be served later."""


class QuotaError(QueueFullError):
    """As many requests of one tenant wait as may of this one."""


class RequestTimeoutError(RuntimeError):
    """A request has taken as long as it may."""


class Unsupported(NotImplementedError):
    """A forced kernel implementation cannot serve this call."""


class EngineDeadError(RuntimeError):
    """The engine has failed or was shut down; only a new one can serve requests."""
