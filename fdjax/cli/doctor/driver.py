"""What the GPU's own driver says, without JAX."""

import subprocess
from dataclasses import dataclass

_QUERY = "name,compute_cap,memory.total,driver_version"
_SECONDS = 20.0


@dataclass(frozen=True)
class Card:
    """A GPU, as nvidia-smi tells of it.

    Attributes:
        name: its vendor's.
        capability: of computation, "9.0".
        memory_mib: all of it.
        driver: the version of its driver.
    """

    name: str
    capability: str
    memory_mib: int
    driver: str

    @property
    def driver_major(self) -> int:
        """The driver's branch, by which CUDA versions are told; 0 if unknown."""
        major = self.driver.partition(".")[0]
        return int(major) if major.isdigit() else 0


def cards() -> tuple[list[Card], str | None]:
    """The NVIDIA GPUs of this machine, and why there are none."""
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except FileNotFoundError:
        return [], "no nvidia-smi on the path"
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"nvidia-smi does not answer: {error}"
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        return [], f"nvidia-smi fails: {said[0] if said else done.returncode}"
    found = [card for line in done.stdout.splitlines() if (card := _card(line))]
    return found, None if found else "nvidia-smi names no GPU"


def _card(line: str) -> Card | None:
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != _QUERY.count(",") + 1:
        return None
    name, capability, memory, driver = fields
    return Card(name, capability, int(memory) if memory.isdigit() else 0, driver)
