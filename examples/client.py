"""OpenAI's client against a server that it starts.

It needs the client: `uv pip install -c constraints.txt openai`.
"""

import contextlib
import re
import subprocess
import sys
from collections.abc import Generator

import openai

SERVE = ("serve", "--port", "0", "--no-warm-up", "--max-model-len", "128")


@contextlib.contextmanager
def served() -> Generator[str]:
    """Starts `fdjax serve`; yields its address, and stops it as a supervisor would."""
    command = [sys.executable, "-m", "fdjax", *SERVE]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        for line in server.stderr:
            if found := re.search(r"http://[\d.]+:\d+", line):
                yield found[0]
                break
        else:
            raise RuntimeError(f"the server ended with status {server.wait()}")
    finally:
        server.terminate()
        server.communicate(timeout=60)


def main() -> None:
    """Asks for a completion, and streams another."""
    with served() as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none")
        (model,) = client.models.list()
        done = client.completions.create(
            model=model.id, prompt="Once upon a time", max_tokens=12, temperature=0.0
        )
        print(done.choices[0].text, done.usage)
        events = client.completions.create(
            model=model.id, prompt="The king", max_tokens=12, stream=True
        )
        for event in events:
            print(event.choices[0].text, end="", flush=True)
        print()


if __name__ == "__main__":
    main()
