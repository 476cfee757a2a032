"""Which extras of the package are there, by what it says of itself."""

from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement

# Another vendor's GPU: nobody misses them who did not ask.
_UNASKED = ("rocm7",)


def missing() -> dict[str, list[str]]:
    """For each extra, the packages that are not there in a version that serves.

    Empty where fdjax itself is not installed: then nothing says what they are.
    """
    try:
        names = metadata.metadata("fdjax").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        return {}
    return {
        name: sorted(set(_missing("fdjax", name)))
        for name in names
        if name not in _UNASKED
    }


def _missing(package: str, extra: str) -> Iterator[str]:
    for line in metadata.requires(package) or []:
        needed = Requirement(line)
        wanted = needed.marker is not None and needed.marker.evaluate({"extra": extra})
        if not wanted or (needed.marker and needed.marker.evaluate({"extra": ""})):
            continue
        try:
            version = metadata.version(needed.name)
        except metadata.PackageNotFoundError:
            yield needed.name
            continue
        if not needed.specifier.contains(version, prereleases=True):
            yield f"{needed.name}{needed.specifier} (it is {version})"
        for inner in needed.extras:
            yield from _missing(needed.name, inner)
