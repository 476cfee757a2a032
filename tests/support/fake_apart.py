"""An engine without a model in a process of its own, which `fake_apart` starts."""

import os
import pathlib
from functools import partial
from typing import Any

from fdjax.cli.engine_process import run
from fdjax.serve.apart.client import EngineProcess
from fdjax.serve.apart.host import Served
from fdjax.serve.apart.launch import Launched
from tests.support.fake_engine import FakeEngine

_ROOT = pathlib.Path(__file__).parents[2]


def launched(module: str) -> Launched:
    """The process of a module of the tests."""
    path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
    return Launched(module, {**os.environ, "PYTHONPATH": path})


def launch(**options: Any) -> Launched:
    """The process of an engine without a model; options are those of `FakeEngine`."""
    process = launched("tests.support.fake_apart")
    process.begin(options)
    return process


def fake_apart(**options: Any) -> EngineProcess:
    """The engine, once it is ready."""
    engine, _ = launch(**options).ready()
    return engine


def _load(options: dict[str, Any]) -> Served:
    if (status := options.pop("exits", None)) is not None:
        os._exit(status)
    return Served(FakeEngine(**options), None, None, {})


if __name__ == "__main__":
    run(lambda options: partial(_load, options))
