"""How every JSON text that leaves the server is written. Knows no shapes."""

import json


def compact(value: object) -> str:
    """JSON in ASCII, without spaces or line breaks. Any string is fine, lone surrogates too.

    Raises ValueError for NaN and infinities, which JSON doesn't have (RFC 8259, section 6).
    """
    return _ENCODER.encode(value)


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)  # json.dumps would make one at every call
