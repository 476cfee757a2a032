"""What `fdjax serve` loads, in its own process or in one for the engine."""

import dataclasses
import logging
import pathlib
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from fdjax.cli.errors import option_names
from fdjax.cli.loading import keep_programs, load, load_ready
from fdjax.cli.options import ModelOptions
from fdjax.cli.progress import OnPrograms
from fdjax.cli.start_times import StartTimes
from fdjax.garbage import settle

if TYPE_CHECKING:
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
        option_names: of the command, as errors of another process name them.
    """

    model: ModelOptions
    settings: dict[str, Any]
    warm_up: bool
    keeps_programs: bool
    programs_folder: pathlib.Path | None
    log_format: LogFormat
    debug: bool
    option_names: tuple[str, ...] = dataclasses.field(default_factory=option_names)

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
    counts: dict[str, int] = {}
    if options.warm_up:
        loaded, counts = _ready(options)
    else:
        loaded = load(options.model, **options.settings).loaded
    times.add("weights", loaded.spent.weights_s)
    if options.warm_up:
        times.add("programs", loaded.spent.programs_s)
    times.lap("engine")
    _LOGGER.info("%s", loaded.engine.limits)
    return loaded, counts


@contextmanager
def _compiling(*, for_people: bool) -> Generator[OnPrograms]:
    from fdjax.serve.progress import compiling

    _LOGGER.info("compiling programs; it listens when they are ready")
    with compiling() if for_people else nullcontext(lambda *_: None) as report:
        yield report


def _ready(options: ServedOptions) -> "tuple[Loaded, dict[str, int]]":
    """A model and its programs, and counts of these."""
    import jax

    from fdjax.serve import compilation_cache

    # Noting which line of Python made each operation is a third of tracing, and nobody
    # asks a server. What was compiled before is found all the same.
    jax.config.update("jax_traceback_in_locations_limit", 0)
    compiling = partial(_compiling, for_people=options.log_format == "text")
    with compilation_cache.counting() as num_compiled:
        llm = load_ready(options.model, compiling, **options.settings)
    settle()
    spent = llm.loaded.spent
    if options.log_format != "text":
        told = spent.num_programs, spent.programs_s
        _LOGGER.info("%d programs ready after %.1f s", *told)
    counts = {"num_programs": spent.num_programs, "num_compiled": num_compiled()}
    return llm.loaded, counts
