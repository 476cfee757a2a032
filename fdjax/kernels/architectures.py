"""Which GPUs the extension's code was compiled for."""

import functools
import re


@functools.cache  # every call that is traced asks
def refuse_architectures(
    architectures: tuple[str, ...], capability: tuple[int, int]
) -> str | None:
    """Why code for these architectures does not run on a GPU, or `None`.

    Args:
        architectures: as CMake's CUDA_ARCHITECTURES names them: "80-real" is machine
            code, "80-virtual" PTX, which drivers compile for newer GPUs, "80" both.
        capability: the GPU's compute capability, major and minor.
    """
    if any(_runs(architecture, capability) for architecture in architectures):
        return None
    major, minor = capability
    return (
        f"the extension fdjax._ffi has code for {', '.join(architectures)}, and "
        f"this GPU has compute capability {major}.{minor}: install fdjax again with "
        f"FDJAX_CUDA_ARCHITECTURES={major}{minor}-real"
    )


def _runs(architecture: str, capability: tuple[int, int]) -> bool:
    match = re.fullmatch(r"(\d+)(\d)([af]?)(?:-(real|virtual))?", architecture)
    if match is None:  # "native" or "all": CMake has chosen
        return True
    built = (int(match[1]), int(match[2]))
    same_major = built[0] == capability[0] and built <= capability
    if match[3] == "a":  # neither machine code nor PTX serves another GPU
        return built == capability
    if match[3] == "f" or match[4] == "real":
        return same_major
    return built <= capability
