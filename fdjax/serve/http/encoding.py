"""JSON as the server writes it."""

import json


def encoded(content: object) -> bytes:
    """As short as it can be; numbers that JSON does not have are an error."""
    return json.dumps(
        content, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    ).encode()
