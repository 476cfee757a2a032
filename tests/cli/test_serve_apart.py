"""`fdjax serve` with its engine in a process of its own."""

import os
import pathlib
import re
import signal
import subprocess
import sys

import httpx2
import pytest

from fdjax.cli import engine_apart
from tests.support.server_process import SERVE, family, server
from tests.support.waiting import wait_until

APART = ("--engine-process", "--max-num-seqs", "4", "--no-warm-up")
BODY = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True}
STREAM = BODY | {"stream": True}
PATH = "/v1/completions"
CPU = {"JAX_PLATFORMS": "cpu"}
# Run when Python starts, in the engine's process: an answer takes a minute, or more;
IS_ENGINE = """import os, sys, time
if "fdjax.cli.engine_process" not in sys.orig_argv:
    os.environ["SERVER"] = str(os.getpid())
else:
"""
SLOW = """    from fdjax.engine.engine import Engine
    step = Engine.step
    def slow(engine):
        time.sleep(0.5)
        return step(engine)
    Engine.step = slow
"""
# and there is no engine while the server lives.
ENDLESS = """    while os.getppid() == int(os.environ["SERVER"]):
        time.sleep(0.05)
"""


def beginning(code: str, folder: pathlib.Path) -> dict[str, str]:
    """The environment in which the engine's process begins with that."""
    (folder / "sitecustomize.py").write_text(IS_ENGINE + code)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return {**CPU, "PYTHONPATH": path}


def engine_of(pid: int) -> int:
    """The process that has the engine, of those that a server has started."""
    for one in family(pid):
        command = pathlib.Path(f"/proc/{one}/cmdline").read_bytes()
        if b"engine_process" in command:
            return one
    raise AssertionError("there is no such process")


def test_requests_end_after_a_signal_to_all():
    """As Ctrl-C in a terminal sends it: the front drains, and its engine serves."""
    log: list[str] = []
    with server(*APART, wrapper=("setsid",), environment=CPU, log=log) as served:
        process, url = served
        engine = engine_of(process.pid)
        with httpx2.stream("POST", url + PATH, json=STREAM, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            os.killpg(process.pid, signal.SIGINT)
            rest = list(lines)
        assert rest[-2] == "data: [DONE]"
        assert process.wait(60) == 0
        wait_until(lambda: not pathlib.Path(f"/proc/{engine}").exists())
    assert any("finish_reason=length" in line for line in log)
    assert any("ready after" in line and "weights_s=" in line for line in log)


def test_an_engine_that_is_killed(tmp_path: pathlib.Path):
    """It is told, and the server ends when it is asked to, with an error."""
    log: list[str] = []
    slow = beginning(SLOW, tmp_path)
    with server(*APART, environment=slow, log=log) as (process, url):
        assert httpx2.get(f"{url}/health", timeout=60).status_code == 200
        with httpx2.stream("POST", url + PATH, json=STREAM, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            os.kill(engine_of(process.pid), signal.SIGKILL)
            rest = list(lines)
        assert any('"error"' in line for line in rest)
        assert httpx2.get(f"{url}/health", timeout=60).status_code == 503
        refused = httpx2.post(url + PATH, json=BODY, timeout=60)
        assert refused.status_code == 503
        assert httpx2.get(f"{url}/metrics", timeout=60).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1
    assert any("was ended by SIGKILL" in line for line in log)


def test_the_engine_ends_with_a_server_that_is_killed():
    with server(*APART, environment=CPU) as (process, _):
        engine = engine_of(process.pid)
        process.kill()
        process.wait()
        wait_until(lambda: not pathlib.Path(f"/proc/{engine}").exists())


@pytest.mark.parametrize(
    "options",
    [
        ("no/such-folder/here",),
        ("--memory-fraction", "1.5"),
        ("--max-model-len", "100000"),
        ("--max-queued-tokens", "5"),
        ("--softmax", "1,2,nan"),
        ("--api-key-file", "no/such-keys"),
    ],
)
def test_a_start_that_fails_says_the_same(options: tuple[str, ...]):
    """By either process: once, and with the same status."""
    ends = [
        subprocess.run(
            [*SERVE, *options, how],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, **CPU},
            check=False,
        )
        for how in ("--no-engine-process", "--engine-process")
    ]
    here, apart = ((end.returncode, end.stdout, plain(end.stderr)) for end in ends)
    assert apart == here
    assert here[0] in (1, 2)
    assert "Traceback" not in here[2]


def plain(log: str) -> str:
    return re.sub(r"^\d{4}-\S+Z ", "", log, flags=re.MULTILINE)


def test_the_front_touches_no_device():
    """JAX would look for one when it is first asked for an array."""
    code = (
        "import contextlib, jax\n"
        "from fdjax.cli import engine_apart\n"
        "from fdjax.cli.options import ModelOptions\n"
        "from fdjax.cli.served_model import ServedOptions\n"
        "from fdjax.cli.start_times import StartTimes\n"
        "from fdjax.serve.http.wiring import application\n"
        "options = ServedOptions(\n"
        "    ModelOptions(), {}, False, False, None, 'text', True\n"
        ")\n"
        "with contextlib.ExitStack() as stack:\n"
        "    process = engine_apart.launched(stack)\n"
        "    loaded, _ = engine_apart.loaded(process, options, StartTimes())\n"
        "    _, serving = application(loaded, names=['a'], sampling={})\n"
        "    serving.close(seconds=20)\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge.backends_are_initialized()\n"
        "assert jax.config.jax_platforms == 'cpu'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **CPU})


def test_a_process_that_could_not_say_why_it_ended(
    capsys: pytest.CaptureFixture[str],
):
    assert engine_apart._failed(-signal.SIGKILL) == 1
    assert "the engine did not start: its process was ended by SIGKILL" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (15, -15)])
def test_a_start_that_is_interrupted(number: int, status: int, tmp_path: pathlib.Path):
    """While the engine's process is not ready, which it never is here."""
    # What is ignored here, as in a shell's background, would be ignored there.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    environment = {**os.environ, **beginning(ENDLESS, tmp_path)}
    process = subprocess.Popen([*SERVE, *APART], env=environment)
    signal.signal(signal.SIGINT, before)
    try:
        wait_until(lambda: has_engine(process.pid))
        engine = engine_of(process.pid)
        process.send_signal(number)
        assert process.wait(60) == status
        wait_until(lambda: not pathlib.Path(f"/proc/{engine}").exists())
    finally:
        process.kill()
        process.wait()


def has_engine(pid: int) -> bool:
    try:
        return bool(engine_of(pid))
    except AssertionError:
        return False


@pytest.mark.parametrize(
    ("platforms", "device", "plugin", "expected"),
    [
        ("cpu", True, True, False),
        ("cuda,cpu", False, False, True),
        ("", True, True, True),
        ("", False, True, False),
        pytest.param("", True, False, False, id="a GPU that JAX does not use"),
    ],
)
def test_a_process_of_its_own_is_for_gpus(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    platforms: str,
    device: bool,
    plugin: bool,
    expected: bool,
):
    gpu, plugins = tmp_path / "gpu", tmp_path / "path"
    if device:
        gpu.touch()
    (plugins / "jax_plugins").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(plugins)] if plugin else [])
    monkeypatch.setattr(engine_apart, "_GPUS", (str(gpu),))
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    assert engine_apart.pays() is expected
