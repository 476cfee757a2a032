"""A server of the shipped model that is attacked by one test after the other."""

from collections.abc import Iterator

import pytest

from tests.support.attacked import FEW_FILES, QUICK, Attacked, attacked_server


@pytest.fixture(scope="session")
def attacked() -> Iterator[Attacked]:
    """It has few file descriptors."""
    with attacked_server(
        *QUICK,
        "--no-compilation-cache",
        "--write-seconds",
        "1",
        wrapper=FEW_FILES,
    ) as one:
        assert one.small().status_code == 200  # what all need is compiled
        yield one
