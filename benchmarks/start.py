"""From the start of `fdjax serve` to its first answer: no programs kept, then all."""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from typing import IO, Any

from benchmarks import needs, results

PORT = 8123
POLL_SECONDS = 0.05


def ready_after(
    command: list[str], *, deadline_s: float
) -> tuple[float, dict[str, Any]]:
    """Seconds until `/health` says that requests are welcome; then the server ends.

    Returns:
        These, and what its log says that they were spent on.

    Raises:
        RuntimeError: it ended before, or was not ready in time; with its last words.
    """
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            while time.perf_counter() - start < deadline_s and server.poll() is None:
                if _healthy():
                    seconds = time.perf_counter() - start
                    return seconds, parts(_read(log))
                time.sleep(POLL_SECONDS)
        finally:
            server.terminate()
            server.wait()
        raise RuntimeError(f"not ready: {_read(log)[-2000:]}")


def parts(log: str) -> dict[str, Any]:
    """The fields of the line of a server's log that says what a start was spent on."""
    for line in log.splitlines():
        if '"message": "ready after ' in line:
            entry = json.loads(line)
            about = ("time", "level", "logger", "message")
            return {name: entry[name] for name in entry if name not in about}
    raise ValueError(f"no line says where a start's seconds went: {log[-2000:]}")


def _read(log: IO[str]) -> str:
    log.seek(0)
    return log.read()


def _healthy() -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=1):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def main() -> None:
    """Measures and writes `start.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="configs/models/llama3-8b.json")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--deadline", type=float, default=600.0, help="seconds")
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    needs.gpu_for(arguments.model, apart=True)
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "fdjax", "serve", "--random-weights"]
        command += ["--model", arguments.model, "--port", str(PORT)]
        command += ["--max-num-seqs", str(arguments.max_num_seqs)]
        command += ["--max-model-len", str(arguments.max_model_len)]
        command += ["--compilation-cache-dir", f"{cache}/programs"]
        command += ["--log-format", "json"]
        (cold_s, cold), *warm = [
            ready_after(command, deadline_s=arguments.deadline)
            for _ in range(1 + arguments.repeats)
        ]
    # JAX starts here, to name the device, only when the server has left it.
    row: dict[str, Any] = {
        "model": pathlib.Path(arguments.model).stem,
        "max_num_seqs": arguments.max_num_seqs,
        "max_model_len": arguments.max_model_len,
        "cold_s": round(cold_s, 1),
        "warm_s": [round(seconds, 1) for seconds, _ in warm],
        "cold_parts": cold,
        "warm_parts": [spent for _, spent in warm],
        **results.provenance(),
    }
    print(row)
    out = arguments.out or results.RESULTS / results.device_slug() / "start.json"
    results.write(out, [row])


if __name__ == "__main__":
    main()
