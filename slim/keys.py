"""API keys: which secrets are valid and whose they are. Knows no HTTP.

Only SHA-256 digests are kept. A slow password hash guards words that can be guessed; these secrets are random, so their
digests give nothing away, and a slow hash would only be paid by every request.
"""

import hmac
import re
from hashlib import sha256
from pathlib import Path

from attrs import define, field, frozen

from .errors import ConfigError

DEFAULT_NAME = "default"
"""Whose key `SLM_API_KEY` is."""

_LINE = re.compile(r"([A-Za-z0-9._-]{1,64}):([0-9A-Fa-f]{64})")
_FORM = "name:digest, at most 64 of A-Z a-z 0-9 . _ - and the 64 hexadecimal digits of the secret's SHA-256"
_EMPTY = sha256(b"").digest()


@frozen
class Key:
    """One caller."""

    name: str
    digest: bytes = field(repr=False)


@define(eq=False)
class KeyRing:
    """The keys that are valid now: that of `SLM_API_KEY` and those of the file. Making one raises ConfigError."""

    secret: str | None = field(repr=False)
    path: Path | None
    required: bool = field(init=False)
    """Whether requests need a key: also where the file has none, so that the last one can be taken away."""
    _keys: tuple[Key, ...] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.required = self.secret is not None or self.path is not None
        self.reload()

    def reload(self) -> int:
        """Read the file again and return how many keys are valid. Raises ConfigError; then the old ones stay."""
        own = [Key(DEFAULT_NAME, sha256(self.secret.encode()).digest())] if self.secret is not None else []
        self._keys = tuple(_read_keys(self.path, own) if self.path is not None else own)
        return len(self._keys)

    def owner(self, secret: bytes) -> str | None:
        """The name of the key with this secret, or None. It takes as long for a wrong secret as for a right one."""
        digest = sha256(secret).digest()
        name = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                name = key.name
        return name


def _read_keys(path: Path, own: list[Key]) -> list[Key]:
    """`own` and the keys of the file. An error never quotes a line: by mistake, it may hold a secret."""
    names = {key.name: "SLM_API_KEY" for key in own}
    digests = {key.digest: "SLM_API_KEY" for key in own}
    keys = list(own)
    for number, line in enumerate(_read_text(path).split("\n"), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        here = f"line {number}"
        match = _LINE.fullmatch(text)
        if match is None:
            raise ConfigError(f"SLM_API_KEYS_FILE: {path}, {here}: a key is written {_FORM}")
        key = Key(match[1], bytes.fromhex(match[2]))
        if key.digest == _EMPTY:
            raise ConfigError(f"SLM_API_KEYS_FILE: {path}, {here}: this is the digest of an empty secret")
        if key.name in names:
            raise ConfigError(f"SLM_API_KEYS_FILE: {path}, {here}: the name is already that of {names[key.name]}")
        if key.digest in digests:
            raise ConfigError(f"SLM_API_KEYS_FILE: {path}, {here}: the secret is already that of {digests[key.digest]}")
        names[key.name] = digests[key.digest] = here
        keys.append(key)
    return keys


def _read_text(path: Path) -> str:
    if not path.is_file():  # opening a named pipe would wait for ever
        raise ConfigError(f"SLM_API_KEYS_FILE: {path} is not a file")
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"SLM_API_KEYS_FILE: {path} can't be read: {reason}") from error
