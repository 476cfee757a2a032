from typing import TypedDict

class BuildInfo(TypedDict):
    version: str
    build_id: str
    jaxlib: str
    ffi_api: tuple[int, int]
    gpu_architectures: tuple[str, ...]

def targets() -> dict[str, dict[str, object]]:
    """Handlers as capsules, by XLA platform ("cpu", "CUDA" or "ROCM") and operation."""

def build_info() -> BuildInfo:
    """How the extension was built; `build_id` changes with its sources."""

def limits() -> dict[str, dict[str, int | tuple[int, ...]]]:
    """What each operation's handlers take, by name: `ffi/<operation>/limits.h`."""
