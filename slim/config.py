"""Settings: flags, then environment, then a `.env` file, then defaults. Knows no engine, no server and no logging.

One table drives the variables, the flags, `.env.example` and the documentation: the fields of `Settings`, of which
each says its meaning and its rule. A wrong value is an error that names it; an unknown `SLM_` name is only a warning,
since Kubernetes puts variables of its own (`SLM_SERVICE_HOST`) into every container.
"""

import argparse
import difflib
import ipaddress
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import field, fields, frozen
from dotenv.parser import parse_stream

from .errors import ConfigError

PREFIX = "SLM_"
DOTENV = Path(".env")

# int() and float() also take `1_0`, digits of other scripts, `nan` and `infinity`.
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_VISIBLE = re.compile(r"[!-~]+")
_HOST_NAME = re.compile(r"[a-z0-9_]([a-z0-9._-]*[a-z0-9_-])?")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
_BOOLEANS = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(("false", "0", "no", "off"), False)
_DAY = 86400.0


@frozen
class Rule:
    """What a setting's text must look like."""

    wanted: str
    """For error texts and documentation, such as `a whole number from 0 to 65535`."""
    parse: Callable[[str], object]
    """Text without outer spaces, never empty, to value. Raises ValueError or KeyError when the text breaks the rule."""
    is_switch: bool = False
    """The flag may stand without a value and then means true."""
    none: str = ""
    """How None is written."""
    is_secret: bool = False
    """The value must not be shown, right or wrong."""


def _whole(low: int, high: int) -> Rule:
    def parse(text: str) -> int:
        if not _WHOLE.fullmatch(text) or not low <= int(text) <= high:
            raise ValueError(text)
        return int(text)

    return Rule(f"a whole number from {low} to {high}", parse)


def _whole_or_auto(low: int, high: int) -> Rule:
    whole = _whole(low, high)
    return Rule(
        f"auto or {whole.wanted}", lambda text: None if text.lower() == "auto" else whole.parse(text), none="auto"
    )


def _seconds(*, zero: bool) -> Rule:
    def parse(text: str) -> float:
        value = float(text) if _NUMBER.fullmatch(text) else math.nan
        if not 0 <= value <= _DAY or (value == 0 and not zero):
            raise ValueError(text)
        return value

    return Rule(f"a number of seconds, {'at least' if zero else 'above'} 0 and at most {_DAY:g}", parse)


def _choice(*names: str, note: str = "") -> Rule:
    by_name = {name.lower(): name for name in names}
    return Rule(f"one of {', '.join(names)}{note}", lambda text: by_name[text.lower()])


def _switch() -> Rule:
    return Rule("true or false", lambda text: _BOOLEANS[text.lower()], is_switch=True)


def _text() -> Rule:
    def parse(text: str) -> str:
        if _CONTROL.search(text):
            raise ValueError(text)
        return text

    return Rule("UTF-8 text without control characters", parse)


def _secret() -> Rule:
    # An HTTP header carries nothing else unchanged.
    def parse(text: str) -> str:
        if not _VISIBLE.fullmatch(text):
            raise ValueError
        return text

    return Rule("visible ASCII characters without spaces", parse, is_secret=True)


def _list(wanted: str, parse_item: Callable[[str], str]) -> Rule:
    return Rule(wanted, lambda text: tuple(parse_item(item.strip().lower()) for item in text.split(",")))


def _hosts() -> Rule:
    def parse(text: str) -> str:
        bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
        if ":" in bare:
            return str(ipaddress.IPv6Address(bare))
        if text != "*" and not _HOST_NAME.fullmatch(text):
            raise ValueError(text)
        return text

    return _list("host names or addresses without ports, separated by commas, or *", parse)


def _origins() -> Rule:
    def parse(text: str) -> str:
        if text != "*" and not _ORIGIN.fullmatch(text):
            raise ValueError(text)
        # Browsers leave the usual port out.
        return text.removesuffix({"http": ":80", "https": ":443"}.get(text.partition(":")[0], ""))

    return _list("origins such as https://app.example:8443 (no path), separated by commas, or *", parse)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _setting(default: object, rule: Rule, meaning: str, flag: str = "") -> Any:
    return field(default=default, repr=not rule.is_secret, metadata={"rule": rule, "meaning": meaning, "flag": flag})


@frozen
class Settings:
    """The effective configuration. Names ending in `_s` are seconds."""

    engine: str = _setting(
        "llama_cpp", _choice("llama_cpp", "fake", note=" (mlx is not built in this version)"), "Inference engine"
    )
    model_path: str | None = _setting(
        None, _text(), "GGUF file; empty: the small model of the smollm2 extra", flag="--model"
    )
    model_name: str | None = _setting(None, _text(), "Name that clients see; empty: the file's name")
    chat_template: str | None = _setting(
        None, _text(), "File with a Jinja chat template; empty: the one in the model's file"
    )
    host: str = _setting("127.0.0.1", _text(), "Address to listen on; 0.0.0.0 for every IPv4 interface")
    port: int = _setting(8000, _whole(0, 65535), "TCP port to listen on; 0 takes a free one")
    n_ctx: int = _setting(4096, _whole(16, 1048576), "Context of one request in tokens, prompt and answer together")
    n_threads: int | None = _setting(
        None, _whole_or_auto(1, 512), "CPU threads per replica; auto divides the usable cores among the replicas"
    )
    n_gpu_layers: int = _setting(
        0, _whole(-1, 1000), "Layers to offload, -1 for all; needs a GPU build of llama-cpp-python"
    )
    replicas: int = _setting(1, _whole(1, 64), "Independent model copies, each with a thread of its own")
    max_batch: int = _setting(8, _whole(1, 128), "Requests that decode together in one replica")
    max_queue_size: int = _setting(32, _whole(0, 100000), "Requests that may wait for a slot before new ones get 503")
    prefill_chunk: int = _setting(128, _whole(1, 512), "Prompt tokens read per step")
    kv_type: str = _setting("f16", _choice("f16", "q8_0"), "Type of the KV cache; q8_0 halves its memory")
    prompt_cache_mb: int = _setting(
        512, _whole(0, 1048576), "RAM for computed prompts that have left their slots, in MiB; 0 keeps none"
    )
    embeddings: bool = _setting(False, _switch(), "Make embeddings, and no text, with the model")
    pooling: str = _setting(
        "auto",
        _choice("auto", "mean", "cls", "last"),
        "How one embedding is made of the tokens' ones; auto: as the model's file says, else mean",
    )
    mlock: bool = _setting(False, _switch(), "Lock the model in RAM so that it is never swapped out")
    request_timeout_s: float = _setting(120.0, _seconds(zero=False), "Deadline over queue wait and generation")
    max_tokens_limit: int = _setting(1024, _whole(1, 1048576), "Upper bound of a request's max_tokens")
    max_prompt_chars: int = _setting(32000, _whole(1, 100000000), "Upper bound of a prompt's length in characters")
    fake_ttft_s: float = _setting(0.0, _seconds(zero=True), "Fake engine: time of each step that reads prompt tokens")
    fake_token_latency_s: float = _setting(0.0, _seconds(zero=True), "Fake engine: time of each other step")
    drain_s: float = _setting(10.0, _seconds(zero=True), "Time that running requests get to finish at shutdown")
    stall_s: float = _setting(
        30.0,
        _seconds(zero=False),
        "Time without a finished step after which the server reports itself stalled; embeddings: at least the deadline",
    )
    max_connections: int = _setting(1024, _whole(1, 100000), "Connections open at the same time")
    max_body_bytes: int = _setting(1048576, _whole(1024, 1073741824), "Upper bound of a request body in bytes")
    body_timeout_s: float = _setting(30.0, _seconds(zero=False), "Time a client has to send its request body")
    write_timeout_s: float = _setting(10.0, _seconds(zero=False), "Time after which a reader that takes nothing is cut")
    sse_keepalive_s: float = _setting(
        15.0, _seconds(zero=True), "Silence in a stream after which a comment is sent; 0 never"
    )
    http2_cleartext: bool = _setting(False, _switch(), "Accept HTTP/2 without TLS")
    api_key: str | None = _setting(None, _secret(), "Key that requests must carry; empty: none is needed")
    api_keys_file: str | None = _setting(
        None, _text(), "File of further keys, one name:digest a line; SIGHUP reads it again"
    )
    metrics_open: bool = _setting(False, _switch(), "Answer /metrics without a key, under any Host")
    allowed_hosts: tuple[str, ...] = _setting(
        (), _hosts(), "Without keys: further names under which clients may reach the server"
    )
    cors_origins: tuple[str, ...] = _setting((), _origins(), "Web pages that may read the answers; empty: none")
    log_level: str = _setting("INFO", _choice("DEBUG", "INFO", "WARNING", "ERROR"), "Least level that is logged")
    log_json: bool = _setting(False, _switch(), "Log one JSON object per line")
    warnings: tuple[str, ...] = ()
    """Warnings about `SLM_` names that are no setting, one sentence each, for the caller to log."""


@frozen
class Setting:
    """One row of the table: a field of `Settings` with all that is said of it."""

    name: str
    default: object
    rule: Rule
    meaning: str
    flag: str

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    def show(self, value: object) -> str:
        """The text that stands for `value` in a variable; empty for a None that has no word."""
        if value is None:
            return self.rule.none
        if self.rule.is_secret:
            return "(set)"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value).lower() if isinstance(value, bool) else str(value)


SETTINGS: tuple[Setting, ...] = tuple(
    Setting(a.name, a.default, a.metadata["rule"], a.metadata["meaning"], a.metadata["flag"] or _flag(a.name))
    for a in fields(Settings)
    if a.metadata
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Give the parser one flag per setting. A flag that isn't given is None, so that lower sources show through."""
    for setting in SETTINGS:
        shown = setting.show(setting.default)
        parser.add_argument(
            setting.flag,
            dest=setting.name,
            metavar="VALUE",
            nargs="?" if setting.rule.is_switch else None,
            const="true" if setting.rule.is_switch else None,
            help=f"{setting.meaning} ({setting.variable}{f', default {shown}' if shown else ''})",
        )


def load_settings(
    flags: Mapping[str, str | None] | None = None, environ: Mapping[str, str] = os.environ, dotenv: Path = DOTENV
) -> Settings:
    """The effective settings. An empty value counts as not given, and a blank one but for a secret.

    `flags` maps names of `Settings` to texts (other keys are ignored), `environ` and the file `dotenv` map variables.
    Raises ConfigError with all wrong values in one line: source, value, and what would be right.
    """
    written = _read_dotenv(dotenv)
    values: dict[str, Any] = {}
    wrong = []
    for setting in SETTINGS:
        sources = (
            (setting.flag, (flags or {}).get(setting.name)),
            (setting.variable, environ.get(setting.variable)),
            (f"{setting.variable} in {dotenv}", written.get(setting.variable)),
        )
        for source, text in sources:
            # A blank secret is more likely a mistake than a wish to have none.
            if text and (text.strip() or setting.rule.is_secret):
                try:
                    values[setting.name] = setting.rule.parse(text.strip())
                except (ValueError, KeyError):
                    shown = "the value" if setting.rule.is_secret else _quote(text)
                    wrong.append(f"{source}: {shown} is not {setting.rule.wanted}")
                break
    if wrong:
        raise ConfigError("; ".join(wrong))
    return Settings(**values, warnings=tuple(_warnings({*environ, *written})))


def _read_dotenv(path: Path) -> Mapping[str, str | None]:
    if not path.is_file():  # opening a named pipe would wait for ever
        return {}
    try:
        with path.open(encoding="utf-8-sig") as file:
            bindings = list(parse_stream(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} can't be read: {error}") from error
    for binding in bindings:
        if binding.error:
            raise ConfigError(f"{path}, line {binding.original.line}: this is not NAME=value")
    # Not interpolated: `$` is a letter like any other.
    return {binding.key: binding.value for binding in bindings if binding.key is not None}


def _quote(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _warnings(names: set[str]) -> Iterator[str]:
    known = {setting.variable.removeprefix(PREFIX) for setting in SETTINGS}
    for name in sorted(names):
        bare = name.removeprefix(PREFIX)
        if name.startswith(PREFIX) and bare not in known:
            near = difflib.get_close_matches(bare, sorted(known), n=1)
            yield f"{name} is not a setting{f'; did you mean {PREFIX}{near[0]}?' if near else ''}"
