"""An engine in a process of its own, as `fdjax serve` starts it."""

import contextlib
import importlib.util
import os
import pathlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import typer

from fdjax.cli.errors import FAILED, show_error
from fdjax.cli.served_model import ServedOptions
from fdjax.cli.start_times import StartTimes
from fdjax.garbage import settle
from fdjax.serve.apart.launch import Launched, StartError

if TYPE_CHECKING:
    from fdjax.serve.apart.loaded import LoadedApart
    from fdjax.serve.tokenizer import Tokenizer

_MODULE = "fdjax.cli.engine_process"
_GPUS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd")


def pays() -> bool:
    """Whether a process of its own is worth it: JAX seems to run on a GPU.

    On an H200 that serves 4,000 tokens a second a token takes 14.7 ms so, and 17.5
    without (`serving_http.json`). On a CPU the model itself takes all cores. No device
    is touched: what is touched here could not be the engine's.
    """
    if named := os.environ.get("JAX_PLATFORMS"):
        return named.split(",")[0] != "cpu"
    has_plugin = importlib.util.find_spec("jax_plugins") is not None
    return has_plugin and any(pathlib.Path(device).exists() for device in _GPUS)


def launched(stack: contextlib.ExitStack) -> Launched:
    """Starts the process, which ends with a stack of contexts, if not before.

    It imports what it needs while this one does.
    """
    process = Launched(_MODULE)
    stack.callback(process.end)
    return process


def loaded(
    process: Launched, options: ServedOptions, times: StartTimes
) -> "tuple[LoadedApart, dict[str, int]]":
    """The model, once it is ready; this process reads its tokenizer meanwhile.

    Args:
        process: that loads it.
        options: which it was given.
        times: of the start; those of the process are among them then.

    Returns:
        The model, and the counts of its programs.

    Raises:
        ConfigError: the tokenizer cannot be read.
        typer.BadParameter: the softmax has numbers that are out of range.
        typer.Exit: the process has ended, and has said why.
    """
    if options.model.softmax != "auto":  # it is for this process to say what is wrong
        options.model.settings()
    process.begin(options.told())
    import jax

    jax.config.update("jax_platforms", "cpu")  # the device is the engine's
    from fdjax.serve.apart.loaded import LoadedApart

    place = pathlib.Path(options.model.model).expanduser()
    with ThreadPoolExecutor(1) as beside:
        # A model of the hub is there when the other process has it.
        reading = beside.submit(_tokenizer, place) if place.is_dir() else None
        try:
            engine, facts = process.ready()
        except StartError as error:
            raise typer.Exit(_failed(error.status)) from None
        for name, seconds in facts["seconds"].items():
            times.add(name, seconds)
        folder = pathlib.Path(facts["folder"])
        tokenizer = _tokenizer(folder) if reading is None else reading.result()
    if options.warm_up:
        settle()
    sizes = facts["vocab_size"], facts["max_model_len"]
    return LoadedApart(engine, tokenizer, folder, *sizes), facts["counts"]


def _tokenizer(folder: pathlib.Path) -> "Tokenizer | None":
    from fdjax.serve.tokenizer import load_tokenizer

    return load_tokenizer(folder)


def _failed(status: int) -> int:
    """The status to end with; of a process that could not say why, this one does."""
    if status >= 0:
        return status or FAILED
    from fdjax.serve.apart.client import how_it_ended

    show_error(
        f"the engine did not start: {how_it_ended(status)}; another process or a limit "
        "may leave it too little memory"
    )
    return FAILED
