"""What a request's line and headers may be."""

from starlette.types import Scope

from fdjax.serve.http.errors import ApiError

# nginx takes about as much.
HEAD_BYTES = 32 * 2**10


def check(scope: Scope) -> None:
    """Refuses a head that is too long, or says two things.

    Raises:
        ApiError: it is one of these.
    """
    fields = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    if fields + len(scope["raw_path"]) + len(scope["query_string"]) > HEAD_BYTES:
        raise too_long()
    names = {name for name, _ in scope["headers"]}
    # A proxy may believe the other.
    if {b"content-length", b"transfer-encoding"} <= names:
        raise ApiError(
            "the head has Content-Length and Transfer-Encoding; send one of them",
            headers={"Connection": "close"},
        )


def too_long() -> ApiError:
    """The error of a head that is."""
    return ApiError(
        f"the request's line and headers have more than {HEAD_BYTES} bytes; send less",
        status=431,
        code="head_too_large",
        headers={"Connection": "close"},
    )
