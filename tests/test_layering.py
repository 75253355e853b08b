"""Who may import whom. Every module has a row in the table; what the row doesn't allow is a failure."""

import ast
import os
import shutil
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import slim

SLIM = Path(slim.__file__).parent

# Names with a leading dot are modules of slim (`.` is the package itself), others are top-level packages. The standard
# library is free, except for what decides where waiting, clocks, JSON and dynamic imports live.
WATCHED = {
    *("asyncio", "concurrent", "importlib", "json", "multiprocessing", "queue", "select"),
    *("signal", "socket", "subprocess", "threading", "time"),
}
PURE = {"attrs", ".types", ".errors"}
ENGINE = PURE | {".engines.slots"}
BODY = PURE | {".wire.convert"}
HANDLER = PURE | {"time", ".scheduler", ".web.http"}
ALLOWED: dict[str, set[str]] = {
    ".": set(),
    ".__main__": {".cli"},
    ".asgi": {".compose", ".errors"},
    ".cli": {"attrs", "signal", "trio", ".", ".compose", ".config", ".errors", ".hardware", ".keys"}
    | {".models", ".web.app", ".web.edge"},
    ".compose": {".chat.template", ".config", ".engines", ".engines.replica", ".errors", ".keys", ".logs", ".metrics"}
    | {".models", ".policy", ".scheduler", ".web.access", ".web.app", ".web.chat", ".web.completions", ".web.cors"}
    | {".web.edge", ".web.embeddings", ".web.generation", ".web.ops", ".web.routes", ".web.tokenize"}
    | {".wire.requests"},
    ".config": {"attrs", "dotenv", ".errors"},
    ".engines": {
        "importlib",
        ".config",
        ".errors",
        ".hardware",
        ".engines.base",
        ".engines.fake",
        ".engines.fake_embedding",
        ".engines.llama_cpp",
        ".engines.llama_cpp.embedding",
    },
    ".engines.base": PURE,
    ".engines.fake": ENGINE | {".engines.fake_model", ".engines.fake_vocab"},
    ".engines.fake_model": PURE | {".engines.fake_vocab"},
    ".engines.fake_embedding": PURE | {".engines.fake", ".engines.fake_vocab", ".engines.embedding_queue"},
    ".engines.fake_vocab": PURE,
    ".engines.llama_cpp": {".engines.llama_cpp.engine", ".engines.llama_cpp.loaded"},
    ".engines.llama_cpp.batch": {"numpy"},
    ".engines.llama_cpp.embedding": PURE
    | {"numpy", ".engines.embedding_queue", ".engines.llama_cpp.loaded", ".engines.llama_cpp.native"}
    | {".engines.llama_cpp.vocab"},
    ".engines.llama_cpp.engine": ENGINE
    | {".engines.llama_cpp.dry", ".engines.llama_cpp.loaded", ".engines.llama_cpp.native"}
    | {".engines.llama_cpp.vocab", ".engines.prefixes", ".engines.prompt_cache", ".engines.sampling"},
    ".engines.llama_cpp.loaded": PURE
    | {".engines.llama_cpp.batch", ".engines.llama_cpp.native", ".engines.llama_cpp.vocab"},
    ".engines.llama_cpp.native": PURE | {"importlib", "llama_cpp", "numpy", "threading", ".engines.llama_cpp.batch"},
    ".engines.llama_cpp.dry": PURE | {"numpy", ".engines.sampling"},
    ".engines.llama_cpp.vocab": PURE,
    ".engines.replica": PURE | {"queue", "threading", ".engines.base", ".text"},
    ".engines.sampling": PURE | {"numpy"},
    ".engines.slots": PURE | {".engines.prefixes"},
    ".engines.prefixes": PURE,
    ".engines.prompt_cache": PURE | {".engines.prefixes"},
    ".engines.embedding_queue": PURE,
    ".answer": {"attrs"},
    ".chat": set(),
    ".chat.calls": {"attrs", ".chat.gemma", ".chat.gemma_rules", ".chat.lark", ".chat.reading"},
    ".chat.environment": {"jinja2", "json"},
    ".chat.formats": PURE
    | {".engines.base", ".chat.calls", ".chat.grammar", ".chat.lark", ".chat.messages"}
    | {".chat.output", ".chat.reasoning", ".chat.template"},
    ".chat.gemma": {"json", ".chat.reading", ".chat.scanning"},
    ".chat.gemma_rules": {"json", ".chat.gemma", ".chat.lark"},
    ".chat.grammar": {"attrs", ".chat.calls", ".chat.lark", ".chat.reasoning"},
    ".chat.lark": {"json"},
    ".chat.marking": PURE,
    ".chat.messages": PURE | {"json"},
    ".chat.output": {"attrs", ".answer", ".chat.calls", ".chat.reading", ".chat.reasoning", ".chat.scanning"},
    ".chat.reading": {"attrs", "json", ".answer", ".chat.scanning"},
    ".chat.reasoning": {"attrs", ".chat.scanning"},
    ".chat.scanning": {"attrs"},
    ".chat.template": PURE
    | {"jinja2", ".engines.base", ".chat.calls", ".chat.environment", ".chat.marking", ".chat.messages"},
    ".errors": set(),
    ".guidance": {".guidance.guide"},
    ".guidance.guide": PURE
    | {"llguidance", "threading", ".engines.base", ".guidance.places", ".guidance.schema", ".guidance.texts"},
    ".guidance.keywords": set(),
    ".guidance.patterns": set(),
    ".guidance.places": PURE,
    ".guidance.schema": PURE | {".guidance.keywords", ".guidance.places", ".guidance.values"},
    ".guidance.texts": {"llguidance", ".guidance.places"},
    ".guidance.values": {".guidance.patterns", ".guidance.places"},
    ".hardware": {"attrs"},
    ".keys": {"attrs", ".errors"},
    ".logs": {"json", "select"},
    ".metrics": PURE | {"prometheus_client"},
    ".models": {"attrs", "importlib", ".config", ".errors"},
    ".policy": PURE,
    ".preparation": PURE | {".chat.formats", ".chat.output", ".chat.template", ".engines.base", ".guidance", ".text"},
    ".scheduler": {".scheduler.core", ".scheduler.job", ".scheduler.replicas"},
    ".scheduler.core": PURE
    | {
        "trio",
        ".engines.replica",
        ".metrics",
        ".policy",
        ".preparation",
        ".scheduler.ending",
        ".scheduler.job",
        ".scheduler.preparing",
        ".scheduler.replicas",
    },
    ".scheduler.ending": PURE | {".scheduler.replicas"},
    ".scheduler.job": PURE | {"trio", ".answer", ".policy", ".preparation"},
    ".scheduler.preparing": PURE | {"trio", ".preparation"},
    ".scheduler.replicas": PURE | {"trio", ".engines.prefixes", ".engines.replica", ".policy", ".preparation"},
    ".text": PURE,
    ".types": {"attrs"},
    ".web": set(),
    ".web.access": {"attrs", ".keys", ".web.http", ".wire.errors"},
    ".web.app": HANDLER | {"trio", ".web.access", ".web.cors", ".web.generation", ".web.routes"},
    ".web.chat": HANDLER
    | {".answer", ".chat.output", ".web.generation"}
    | {".wire.answers", ".wire.chat", ".wire.requests"},
    ".web.completions": HANDLER | {".web.generation", ".wire.answers", ".wire.completions", ".wire.requests"},
    ".web.generation": PURE | {"trio", ".scheduler", ".web.http", ".wire.errors", ".wire.sse"},
    ".web.cors": {"attrs", ".web.http", ".wire.errors"},
    ".web.edge": PURE | {"trio", "hypercorn", "socket", ".web.edge.connection", ".web.edge.http1"},
    ".web.edge.connection": PURE | {"trio", "hypercorn", "socket", ".web.edge.http1"},
    ".web.edge.http1": {"trio", "h11", "hypercorn"},
    ".web.embeddings": PURE
    | {"trio", ".preparation", ".scheduler", ".web.generation", ".web.http", ".wire.embeddings", ".wire.requests"},
    ".web.http": PURE | {"trio", ".wire.errors"},
    ".web.ops": HANDLER | {".", ".metrics", ".wire.errors", ".wire.models", ".wire.openapi", ".wire.readiness"},
    ".web.routes": {"attrs", ".web.chat", ".web.completions", ".web.embeddings", ".web.http", ".web.ops"}
    | {".web.tokenize", ".wire.errors"},
    ".web.tokenize": PURE
    | {".preparation", ".scheduler", ".web.generation", ".web.http"}
    | {".wire.requests", ".wire.tokenize"},
    ".wire": set(),
    ".wire.answers": PURE | {".answer", ".wire.render", ".wire.sse"},
    ".wire.chat": PURE | {"json", ".answer", ".wire.answers", ".wire.scores"},
    ".wire.completions": PURE | {"json", ".answer", ".wire.answers", ".wire.scores"},
    ".wire.convert": PURE | {"cattrs", "json"},
    ".wire.embeddings": BODY
    | {".wire.render", ".wire.requests.call", ".wire.requests.completion", ".wire.requests.unbuilt"},
    ".wire.errors": PURE | {".wire.render", ".wire.sse"},
    ".wire.models": PURE | {".wire.render"},
    ".wire.openapi": PURE
    | {".wire.embeddings", ".wire.render", ".wire.requests.chat", ".wire.requests.completion"}
    | {".wire.schemas", ".wire.shapes", ".wire.tokenize"},
    ".wire.readiness": {".wire.render"},
    ".wire.render": {"json"},
    ".wire.requests": {".wire.requests.call", ".wire.requests.chat", ".wire.requests.completion"},
    ".wire.requests.call": PURE,
    ".wire.requests.chat": BODY
    | {".wire.requests.call", ".wire.requests.generation", ".wire.requests.messages"}
    | {".wire.requests.tools", ".wire.requests.unbuilt"},
    ".wire.requests.completion": BODY | {".wire.requests.call", ".wire.requests.generation", ".wire.requests.unbuilt"},
    ".wire.requests.form": BODY,
    ".wire.requests.generation": BODY | {".wire.requests.call", ".wire.requests.form", ".wire.requests.sampling"},
    ".wire.requests.messages": BODY,
    ".wire.requests.sampling": BODY,
    ".wire.requests.tools": BODY,
    ".wire.requests.unbuilt": BODY | {".wire.render"},
    ".wire.schemas": BODY,
    ".wire.scores": PURE,
    ".wire.shapes": {".wire.schemas"},
    ".wire.sse": PURE,
    ".wire.tokenize": BODY
    | {".wire.render", ".wire.requests.call", ".wire.requests.chat"}
    | {".wire.requests.unbuilt"},
}


def modules(root):
    """Name in the table's form -> path."""
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        yield "." + ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(package, tree, known):
    """What a module's tree imports, in the table's form; `package` is the folder it lies in, as name parts."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (name.name.partition(".")[0] for name in names)
            case ast.ImportFrom(level=0, module=module):
                yield module.partition(".")[0]
            case ast.ImportFrom(level=level, module=module, names=names):
                base = [*package[: len(package) - level + 1], *(module.split(".") if module else ())]
                for name in names:
                    inner = "." + ".".join([*base, name.name])
                    yield inner if inner in known else "." + ".".join(base)
            case ast.Call(func=ast.Name(id="import_module" | "__import__"), args=[ast.Constant(value=str(name)), *_]):
                yield name.partition(".")[0]
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
                yield name.partition(".")[0]


def used(root):
    """Module -> what it imports, in the table's form."""
    known = dict(modules(root))
    for module, path in known.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        yield module, set(imports(path.relative_to(root).parent.parts, tree, known))


def violations(root):
    for module, targets in used(root):
        rule = ALLOWED.get(module)
        if rule is None:
            yield f"{module} has no rule"
            continue
        for target in sorted(targets):
            is_free = target in sys.stdlib_module_names and target not in WATCHED
            if target not in rule and not is_free:
                yield f"{module} must not import {target}"


def test_every_import_is_allowed():
    assert list(violations(SLIM)) == []


def test_every_permission_is_used():
    """So that the table is the architecture, and not a wish. PURE is the exception: it is common to all."""
    idle = {module: sorted(ALLOWED.get(module, set()) - targets - PURE) for module, targets in used(SLIM)}
    assert {module: names for module, names in idle.items() if names} == {}


def test_every_rule_has_its_module():
    assert sorted(ALLOWED.keys() - dict(modules(SLIM))) == []


def test_every_folder_is_a_package():
    assert [path for path in SLIM.rglob("*.py") if not (path.parent / "__init__.py").exists()] == []


def test_the_table_has_no_cycle():
    inner = {module: {target for target in rule if target.startswith(".")} for module, rule in ALLOWED.items()}
    TopologicalSorter(inner).prepare()


@pytest.mark.parametrize("name", ["asyncio", "concurrent", "multiprocessing", "subprocess"])
def test_nobody_may_import(name):
    assert [module for module, rule in ALLOWED.items() if name in rule] == []


@pytest.mark.parametrize(
    ("name", "homes"),
    [
        ("trio", (".cli", ".scheduler", ".web")),
        ("hypercorn", (".web.edge",)),
        ("socket", (".web.edge",)),
        ("json", (".chat", ".logs", ".wire")),
        ("cattrs", (".wire",)),
        ("jinja2", (".chat",)),
        ("llama_cpp", (".engines.llama_cpp",)),
        ("llguidance", (".guidance",)),
        ("numpy", (".engines.llama_cpp", ".engines.sampling")),
        ("threading", (".engines.replica", ".engines.llama_cpp", ".guidance")),
        ("queue", (".engines.replica",)),
        ("prometheus_client", (".metrics",)),
        ("time", (".web",)),
    ],
)
def test_the_table_itself_keeps_each_library_in_its_home(name, homes):
    users = {module for module, rule in ALLOWED.items() if name in rule}
    assert {user for user in users if not any(user == home or user.startswith(home + ".") for home in homes)} == set()


@pytest.mark.parametrize(
    ("path", "line", "verdict"),
    [
        ("policy.py", "import time", ".policy must not import time"),
        ("policy.py", "from . import scheduler", ".policy must not import .scheduler"),
        ("policy.py", "from .engines import base", ".policy must not import .engines.base"),
        ("policy.py", "from . import __version__", ".policy must not import ."),
        ("text.py", "def f():\n    import asyncio", ".text must not import asyncio"),
        ("text.py", "from slim.types import Token", ".text must not import slim"),
        ("metrics.py", "import os, socket as s", ".metrics must not import socket"),
        ("engines/base.py", "import numpy.random", ".engines.base must not import numpy"),
        ("engines/slots.py", "from ..web import edge", ".engines.slots must not import .web.edge"),
        ("engines/replica.py", "from trio.lowlevel import checkpoint", ".engines.replica must not import trio"),
        ("models.py", "importlib.import_module('llama_cpp.llama')", ".models must not import llama_cpp"),
        ("wire/sse.py", "from . import convert", ".wire.sse must not import .wire.convert"),
        ("stray.py", "", ".stray has no rule"),
    ],
)
def test_a_bad_import_is_caught(tmp_path, path, line, verdict):
    root = tmp_path / "slim"
    shutil.copytree(SLIM, root, ignore=shutil.ignore_patterns("__pycache__"))
    before = set(violations(root))
    with (root / path).open("a") as file:
        file.write(f"\n{line}\n")
    assert set(violations(root)) - before == {verdict}


def test_modules_import_without_linux_and_without_backends(tmp_path):
    program = """if True:
        import importlib, os, pkgutil, socket, sys
        import trio  # it lists the constants of socket itself
        sys.modules.update(dict.fromkeys(("resource", "llama_cpp", "numpy", "mlx", "mlx_lm")))
        for holder, name in ((os, "sched_getaffinity"), (socket, "TCP_USER_TIMEOUT")):
            if hasattr(holder, name):
                delattr(holder, name)
        import slim
        backends = ("slim.engines.llama_cpp", "slim.engines.mlx", "slim.engines.sampling")
        def names(package):
            for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
                if info.name not in backends and info.name != "slim.__main__":
                    yield info.name
                    if info.ispkg:
                        yield from names(importlib.import_module(info.name))
        for name in names(slim):
            importlib.import_module(name)
        print("imported")
    """
    environ = {**os.environ, "SLM_ENGINE": "fake"}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.stdout == "imported\n", done.stderr
