"""A server as aiperf measures it beside what the server says of itself, in `/metrics`.

`.ci/run clients` installs aiperf in `.venv-aiperf`; then, beside `fdjax serve`,

    python -m benchmarks.client_times --url http://127.0.0.1:8000

prints both, and fails where counts differ, or times by more than `--allowed`.
"""

import argparse
import json
import pathlib
import re
import subprocess
import tempfile
import urllib.request
from dataclasses import dataclass

from benchmarks import needs

ROOT = pathlib.Path(__file__).parents[1]
PROGRAM = ROOT / ".venv-aiperf" / "bin" / "aiperf"
_TOKENIZER = ROOT / "fdjax" / "assets" / "tales-5m"
_SECONDS = 600
_COUNTS = {
    "requests": ("request_count", "request_success_total"),
    "prompt tokens": ("total_usage_prompt_tokens", "prompt_tokens_total"),
    "output tokens": ("total_usage_completion_tokens", "generation_tokens_total"),
}
# Milliseconds there; seconds of a histogram here.
_TIMES = {
    "first token": ("time_to_first_token", "time_to_first_token_seconds"),
    "each token after": (
        "inter_token_latency",
        "request_time_per_output_token_seconds",
    ),
    "request": ("request_latency", "e2e_request_latency_seconds"),
}


@dataclass(frozen=True)
class Pair:
    """One measure: means, where it is a time in seconds.

    Attributes:
        client: of aiperf.
        server: of `/metrics`.
    """

    client: float
    server: float

    @property
    def difference(self) -> float:
        """What the client has more, as a share of the server's."""
        return self.client / self.server - 1


def compared(
    url: str,
    *,
    kind: str = "completions",
    model: str = "tales-5m",
    tokenizer: pathlib.Path = _TOKENIZER,
    requests: int = 12,
    concurrency: int = 2,
    prompt_tokens: int = 24,
    output_tokens: int = 16,
) -> tuple[dict[str, Pair], dict[str, Pair]]:
    """Counts and times of requests that nobody else sends meanwhile.

    Args:
        url: of the server.
        kind: `completions` or `chat`.
        model: what the server calls it.
        tokenizer: the folder of the model's.
        requests: in all.
        concurrency: of them under way at once.
        prompt_tokens: of each.
        output_tokens: of each.

    Raises:
        subprocess.CalledProcessError: aiperf failed.
    """
    command = [
        *(PROGRAM, "profile", "--url", url, "--model", model, "--endpoint-type", kind),
        *("--streaming", "--tokenizer", tokenizer, "--use-server-token-count"),
        *("--isl", prompt_tokens, "--osl", output_tokens, "--concurrency", concurrency),
        *("--request-count", requests, "--extra-inputs", "ignore_eos:true"),
        *("--random-seed", 1, "--ui", "none", "--workers-max", 1),
    ]
    before = _metrics(url)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [*map(str, command), "--artifact-dir", folder],
            check=True,
            capture_output=True,
            timeout=_SECONDS,
        )
        report = pathlib.Path(folder, "profile_export_aiperf.json")
        told = json.loads(report.read_text())
    after = _metrics(url)

    def more(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    def mean(name: str) -> float:
        return more(f"{name}_sum") / more(f"{name}_count")

    counts = {
        name: Pair(told[there]["avg"], more(here))
        for name, (there, here) in _COUNTS.items()
    }
    times = {
        name: Pair(told[there]["avg"] / 1000, mean(here))
        for name, (there, here) in _TIMES.items()
    }
    return counts, times


def _metrics(url: str) -> dict[str, float]:
    """Sums over all labels."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        text = response.read().decode()
    sums: dict[str, float] = {}
    for name, value in re.findall(r"^fdjax:(\w+)\{.*\} (\S+)$", text, re.MULTILINE):
        sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def main() -> None:
    """Prints counts and times beside each other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument(
        "--kind", choices=("completions", "chat"), default="completions"
    )
    parser.add_argument("--model", default="tales-5m")
    parser.add_argument("--tokenizer", type=pathlib.Path, default=_TOKENIZER)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, default=24, help="of each")
    parser.add_argument("--output-tokens", type=int, default=16, help="of each")
    parser.add_argument("--allowed", type=float, default=0.05, help="share of a time")
    arguments = vars(parser.parse_args())
    if not PROGRAM.exists():
        raise SystemExit(needs.missing("aiperf"))
    url, allowed = arguments.pop("url"), arguments.pop("allowed")
    counts, times = compared(url, **arguments)
    for name, pair in counts.items():
        print(f"{name:18}{pair.client:12.0f}{pair.server:12.0f}")
    for name, pair in times.items():
        print(
            f"{name:18}{pair.client:12.4f}{pair.server:12.4f} s {pair.difference:+.1%}"
        )
    counted = all(pair.client == pair.server for pair in counts.values())
    if not counted or any(abs(p.difference) > allowed for p in times.values()):
        raise SystemExit(f"counts differ, or times by more than {allowed:.0%}")


if __name__ == "__main__":
    main()
