"""How servers start and end: with broken files, told to end, with a step that hangs."""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from tests.support.attacked import QUICK, Attacked, attacked_server
from tests.support.quiet import quiet
from tests.support.server_process import SERVE
from tests.support.waiting import wait_until

PATH = "/v1/completions"
# Longer than any of this takes, on a machine that others use.
PATIENCE_S = 60
# Runs when Python starts: once there is a file, no step of the engine ends, and soon
# there is another file, which says so.
HANG = """import os, threading, time
def hang():
    while not os.path.exists(os.environ["HANGS"]):
        time.sleep(0.05)
    from fdjax.engine.engine import Engine
    Engine.step = lambda *_, **__: time.sleep(1e6)
    open(os.environ["HANGS"] + "-now", "w").close()
threading.Thread(target=hang, daemon=True).start()
"""
# Containers have such users.
HOMELESS = """import pwd
def unknown(uid):
    raise KeyError(uid)
pwd.getpwuid = unknown
"""
JAX_FOLDER = "JAX_COMPILATION_CACHE_DIR"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    made = tmp_path_factory.mktemp("starts")
    (made / "sitecustomize.py").write_text(HANG)
    return made


@pytest.fixture(scope="module")
def first(folder: pathlib.Path) -> Iterator[Attacked]:
    """It hangs when there is a file, and has kept compiled programs."""
    programs = ("--compilation-cache-dir", str(folder / "programs"))
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    environment = {"PYTHONPATH": path, "HANGS": str(folder / "hangs")}
    with attacked_server(
        *QUICK,
        *programs,
        "--drain-seconds",
        "0.5",
        "--stall-seconds",
        "5",
        environment=environment,
    ) as one:
        assert one.small().status_code == 200
        yield one


@pytest.fixture(scope="module")
def cut(folder: pathlib.Path, first: Attacked) -> pathlib.Path:
    """What the first has kept, each file cut in half."""
    copy = folder / "cut"
    shutil.copytree(folder / "programs", copy)
    copy.chmod(0o700)
    for file in copy.glob("*-cache"):
        os.truncate(file, file.stat().st_size // 2)
    return copy


@pytest.fixture(scope="module")
def second(cut: pathlib.Path) -> Iterator[Attacked]:
    """It finds nothing but broken programs."""
    programs = ("--compilation-cache-dir", str(cut))
    with attacked_server(*QUICK, *programs, "--drain-seconds", "1") as one:
        assert one.small().status_code == 200
        yield one


def test_broken_programs_are_said_and_written_anew(
    folder: pathlib.Path, cut: pathlib.Path, second: Attacked
):
    whole = {file.name: file.stat().st_size for file in folder.glob("programs/*-cache")}
    assert whole
    sizes = {file.name: file.stat().st_size for file in cut.glob("*-cache")}
    wrong = [name for name, size in whole.items() if sizes[name] < 0.9 * size]
    assert not wrong, "these are still cut"

    def told() -> int:
        return sum("WARNING" in line and "-cache" in line for line in [*second.log])

    wait_until(lambda: told() >= len(whole))


def test_told_to_end_under_load(second: Attacked):
    """Whoever is not served to the end is told so."""
    body = {"prompt": [5], "n": 128, "max_tokens": 900, "ignore_eos": True}
    taken = second.metric("request_params_n_count")

    def ask(place: int) -> httpx2.Response:
        return second.post(PATH, body | {"stream": place % 2 > 0})

    with ThreadPoolExecutor(9) as pool:
        asked = [pool.submit(ask, place) for place in range(9)]
        wait_until(lambda: second.metric("request_params_n_count") >= taken + 9, 120)
        second.process.send_signal(signal.SIGTERM)
        answers = [one.result() for one in asked]
    for place, answer in enumerate(answers):
        if place % 2:
            *_, error, done, rest = answer.text.split("\n\n")
            assert (done, rest) == ("data: [DONE]", "")
            told: Any = json.loads(error.removeprefix("data: "))["error"]
        else:
            assert answer.status_code == 503
            told = answer.json()["error"]
        assert told["code"] == "draining"
    assert second.process.wait(PATIENCE_S) == 3
    assert not any("Traceback" in line for line in second.log)


def test_a_step_that_does_not_end(folder: pathlib.Path, first: Attacked):
    """It is told at `/health`, and does not keep the server from ending."""
    with quiet(first.port) as beside:
        beside.go_on()
    (folder / "hangs").touch()
    wait_until((folder / "hangs-now").exists)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(first.small)
        try:
            wait_until(lambda: not first.healthy(), PATIENCE_S)
            first.process.send_signal(signal.SIGTERM)
            assert first.process.wait(PATIENCE_S) == 3
            assert asked.result().status_code == 503
        finally:
            first.process.kill()


def test_a_port_in_use_is_found_before_the_model_is_read(tmp_path: pathlib.Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        empty = (*QUICK, "--model", str(tmp_path), "--port", port)
        with pytest.raises(SystemExit, match=f"port {port}"), attacked_server(*empty):
            pass


def test_a_user_without_a_home(tmp_path: pathlib.Path):
    """Nothing is kept, and the server goes on: here, to a model that is not there."""
    (tmp_path / "sitecustomize.py").write_text(HOMELESS)
    of_users = {"HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", JAX_FOLDER}
    environment = {name: os.environ[name] for name in os.environ.keys() - of_users}
    done = subprocess.run(
        [*SERVE, "--model", str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**environment, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 1
    assert "programs are not kept" in done.stderr
    assert "Traceback" not in done.stderr
