"""The command line: `slim-serve serve`, `info`, `--version`. Turns wrong settings into one line and an exit code."""

import argparse
import ipaddress
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence

import attrs
import trio

from . import __version__
from .compose import prepare
from .config import SETTINGS, Settings, add_flags, load_settings
from .errors import ConfigError
from .hardware import default_threads, describe_machine
from .keys import KeyRing
from .models import resolve_model
from .web import edge
from .web.app import App

log = logging.getLogger("slim")

EXIT_WRONG_SETTING = 2
FLUSH_S = 0.3
"""Seconds that the last errors have to reach their clients after the drain."""
LAST_RESORT_S = 0.9
"""Seconds after the drain when the process ends whatever still hangs, be it a native call."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code: 0, or 2 for a wrong setting."""
    parser = argparse.ArgumentParser(prog="slim-serve", description="Serve a small language model to many clients.")
    parser.add_argument("--version", action="version", version=f"slim-serve {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_flags(commands.add_parser("serve", help="serve a model through OpenAI's API"))
    add_flags(commands.add_parser("info", help="show this machine and the effective settings"))
    flags = vars(parser.parse_args(arguments))
    command = {"serve": serve, "info": info}[flags.pop("command")]
    try:
        command(flags)
    except ConfigError as error:
        print(f"slim-serve: {error}", file=sys.stderr)
        return EXIT_WRONG_SETTING
    return 0


def info(flags: Mapping[str, str | None]) -> None:
    """Print the machine and the settings as `serve` would use them."""
    settings = load_settings(flags)
    machine = describe_machine()
    for field in attrs.fields(type(machine)):
        print(f"{field.name:<28} {getattr(machine, field.name)}")
    print()
    for setting in SETTINGS:
        print(f"{setting.variable:<28} {setting.show(getattr(settings, setting.name))}")
    print()
    print(f"{'threads per replica':<28} {settings.n_threads or default_threads(settings.replicas)}")
    print(f"{'model':<28} {model_text(settings)}")
    for warning in settings.warnings:
        print(f"warning: {warning}")


def model_text(settings: Settings) -> str:
    """The model that `serve` would take, or why it would not start."""
    try:
        model = resolve_model(settings)
    except ConfigError as error:
        return f"none: {error}"
    return str(model.path or model.name)


def serve(flags: Mapping[str, str | None]) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises ConfigError."""
    app, settings = prepare(flags)
    try:
        listener = edge.open_listener(settings.host, settings.port)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        raise ConfigError(f"can't listen on {where} (SLM_HOST, SLM_PORT): {error.strerror or error}") from error
    if not app.access.keys.required and not is_loopback(listener):
        log.warning("everyone who reaches this address may use the server: set SLM_API_KEY, or listen on 127.0.0.1")
    trio.run(run_server, app, listener, settings.drain_s)


def is_loopback(listener: edge.Listener) -> bool:
    """Whether only this machine reaches the listener."""
    host: str = listener.getsockname()[0]
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


async def run_server(app: App, listener: edge.Listener, drain_s: float) -> None:
    """Serve on the listener until a signal has come and the drain is over."""
    stop = trio.Event()
    async with trio.open_nursery() as nursery:

        async def serve_http(task_status: trio.TaskStatus[list[str]]) -> None:
            await edge.serve(app, listener, shutdown_trigger=stop.wait, task_status=task_status)
            nursery.cancel_scope.cancel()

        await nursery.start(drain_at_signal, app, drain_s, stop)
        if app.access.keys.path is not None and hasattr(signal, "SIGHUP"):  # not on Windows
            await nursery.start(reload_at_hangup, app.access.keys)
        urls = await nursery.start(serve_http)
        log.info("listening on %s", ", ".join(urls))


async def reload_at_hangup(keys: KeyRing, task_status: trio.TaskStatus[None]) -> None:
    """At SIGHUP read the file of keys again. Requests that run go on, whatever becomes of their key."""
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            try:
                log.info("API keys read again: %d are valid", keys.reload())
            except ConfigError as error:
                log.error("the API keys stay as they were: %s", error)


async def drain_at_signal(app: App, drain_s: float, stop: trio.Event, task_status: trio.TaskStatus[None]) -> None:
    """At SIGTERM or SIGINT drain with the listener open, then let hypercorn stop, then cut what still hangs."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        await anext(signals)
        log.info("draining: running requests have %g s; a second signal ends at once", drain_s)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_at_second_signal, signals)
            await app.drain(drain_s)
            nursery.start_soon(end_after, LAST_RESORT_S)
            stop.set()
            await trio.sleep(FLUSH_S)
            edge.close_connections()


async def end_at_second_signal(signals: AsyncIterator[int]) -> None:
    await anext(signals)
    end_now(1)


async def end_after(seconds: float) -> None:
    """An engine thread can't be cancelled: a native call that never returns would hold the process for ever."""
    await trio.sleep(seconds)
    log.warning("something still hangs; ending the process")
    end_now(0)


def end_now(code: int) -> None:
    logging.shutdown()
    os._exit(code)
