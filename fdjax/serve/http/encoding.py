"""JSON as the server writes it."""

import json

# One for all: `json.dumps` makes another at each call.
ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encoded(content: object) -> bytes:
    """As short as it can be; numbers that JSON does not have are an error."""
    return ENCODER.encode(content).encode()
