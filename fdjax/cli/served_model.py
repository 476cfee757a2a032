"""What `fdjax serve` loads, in its own process or in one for the engine."""

import dataclasses
import gc
import logging
import pathlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fdjax.cli.loading import keep_programs, load
from fdjax.cli.options import ModelOptions
from fdjax.cli.start_times import StartTimes

if TYPE_CHECKING:
    from fdjax.serve.llm import LLM
    from fdjax.serve.loading import Loaded

_LOGGER = logging.getLogger(__name__)

LogFormat = Literal["text", "json"]


@dataclass(frozen=True)
class ServedOptions:
    """What to load and how to make it ready.

    Attributes:
        model: which, and how.
        settings: other arguments of `fdjax.LLM`.
        warm_up: all programs are compiled.
        keeps_programs: for the next start.
        programs_folder: for them; the user's by default.
        log_format: of the log.
        debug: see `reported`.
    """

    model: ModelOptions
    settings: dict[str, Any]
    warm_up: bool
    keeps_programs: bool
    programs_folder: pathlib.Path | None
    log_format: LogFormat
    debug: bool

    def told(self) -> dict[str, Any]:
        """As JSON has it, for another process."""
        folder = self.programs_folder
        told = dataclasses.asdict(self)
        return told | {"programs_folder": None if folder is None else str(folder)}

    @staticmethod
    def heard(told: dict[str, Any]) -> "ServedOptions":
        """What was `told`."""
        folder = told["programs_folder"]
        fields: dict[str, Any] = {
            **told,
            "model": ModelOptions(**told["model"]),
            "programs_folder": None if folder is None else pathlib.Path(folder),
        }
        return ServedOptions(**fields)


def begin_device(model: ModelOptions) -> None:
    """Starts the device, while what else is needed is imported."""
    from fdjax import device

    device.claim_memory(model.memory_fraction)
    device.begin()


def load_served(
    options: ServedOptions, times: StartTimes
) -> "tuple[Loaded, dict[str, int]]":
    """Loads a model and compiles its programs, and says so on stderr.

    Args:
        options: which, and how.
        times: of the start.

    Returns:
        The model, and counts of its programs: how many there are, and were not kept by
        another start.

    Raises:
        ConfigError: see `fdjax.LLM`, here and for the next two.
        CheckpointError: as above.
        MemoryBudgetError: as above.
    """
    from fdjax import device

    if options.keeps_programs:
        keep_programs(options.programs_folder)
    times.lap("imports")
    device.platform()
    times.lap("device")
    llm = load(options.model, **options.settings)
    times.add("weights", llm.loaded.weights_s)
    times.lap("engine")
    _LOGGER.info("%s", llm.engine.limits)
    counts: dict[str, int] = {}
    if options.warm_up:
        counts = _warm_up(llm, for_people=options.log_format == "text")
        times.lap("programs")
    return llm.loaded, counts


def settle() -> None:
    """What is here stays: the collector need not look through it for requests."""
    gc.collect()
    gc.freeze()


def _warm_up(llm: "LLM", *, for_people: bool) -> dict[str, int]:
    import jax

    from fdjax.serve import compilation_cache

    # Noting which line of Python made each operation is a third of tracing, and nobody
    # asks a server. What was compiled before is found all the same.
    jax.config.update("jax_traceback_in_locations_limit", 0)
    _LOGGER.info("compiling programs; it listens when they are ready")
    start = time.monotonic()
    with compilation_cache.counting() as num_compiled:
        count = llm.warm_up(progress=for_people)
    settle()
    if not for_people:
        _LOGGER.info("%d programs ready after %.1f s", count, time.monotonic() - start)
    return {"num_programs": count, "num_compiled": num_compiled()}
