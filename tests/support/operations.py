"""The operations that have CUDA kernels: their sources, hashed, and their tests."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMPILED = {".cc", ".cu", ".cuh", ".h"}

# Test files that are named after something else than the operation that they are about.
# Where they are about several of attention, each is of one that they run most of.
ABOUT = {
    "test_absent_pages": "prefill_attention",
    "test_bad_views_gpu": "prefill_attention",
    "test_attention_invariance": "decode_attention",
    "test_paged_layouts": "decode_attention",
    "test_ragged_batches": "attention_states",
}

_INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)
_GPU_TEST = re.compile(r"\bmark\.gpu\b")


def operations(root: Path = ROOT) -> list[str]:
    """Every operation whose kernels the extension launches, by name."""
    return sorted(path.parent.name for path in root.glob("ffi/*/gpu_handler.cc"))


def sources(operation: str, root: Path = ROOT) -> dict[str, str]:
    """The hash of every file that an operation is made of, by path below `root`.

    These are the files of `ffi/<operation>`, what they include, however indirectly, and
    `fdjax/kernels/<operation>`. The hashes depend on the bytes of the files alone, so
    that two copies of a tree agree.
    """
    root = root.resolve()
    compiled = (root / "ffi" / operation).rglob("*")
    waiting = [path for path in compiled if path.suffix in COMPILED]
    found = set((root / "fdjax" / "kernels" / operation).rglob("*.py"))
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _included(path, root / "ffi")
    return {path.relative_to(root).as_posix(): _hash(path)[:16] for path in found}


def _included(path: Path, ffi: Path) -> Iterator[Path]:
    """The files of ours that a file includes, as the compiler would find them."""
    for name in _INCLUDE.findall(path.read_text()):
        candidates = (path.parent / name, ffi / "include" / name, ffi / name)
        found = next((file for file in candidates if file.is_file()), None)
        if found is not None:  # what is not ours is XLA's, CUDA's or the compiler's
            yield found.resolve()


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def build_id(root: Path = ROOT) -> str:
    """What `ffi/CMakeLists.txt` calls an extension that is built from these sources."""
    found = (path for path in (root / "ffi").rglob("*") if path.suffix in COMPILED)
    hashes = "".join(_hash(path) for path in sorted(found, key=str))
    return hashlib.sha256(hashes.encode()).hexdigest()[:12]


def operation_of(test: str, root: Path = ROOT) -> str | None:
    """The operation that a test file is about, by its name or `ABOUT`, or `None`."""
    stem, known = Path(test).stem, operations(root)
    longest_first = sorted(known, key=len, reverse=True)
    named = (name for name in longest_first if f"{stem}_".startswith(f"test_{name}_"))
    about = ABOUT.get(stem)
    return next(named, about if about in known else None)


def gpu_tests(operation: str, root: Path = ROOT) -> list[str]:
    """The files with an operation's tests on a GPU, by path below `root`."""
    tests = sorted((root / "tests" / "kernels").glob("test_*.py"))
    about = (path for path in tests if operation_of(path.name, root) == operation)
    return [
        path.relative_to(root).as_posix()
        for path in about
        if _GPU_TEST.search(path.read_text())
    ]
