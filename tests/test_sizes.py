"""Modules and functions stay small enough to be read in one go."""

import ast
from pathlib import Path

import pytest

import slim

MODULE_LINES = 400
FUNCTION_LINES = 40
MODULES = sorted(Path(slim.__file__).parent.rglob("*.py"))


def oversized(source):
    if (lines := len(source.splitlines())) > MODULE_LINES:
        yield f"the module has {lines} lines"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = node.end_lineno - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield f"{node.name} has {lines} lines"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(MODULES[0].parent)))
def test_modules_and_functions_are_small(path):
    assert list(oversized(path.read_text(encoding="utf-8"))) == []


def test_the_check_counts_lines_of_modules_and_of_nested_and_async_functions():
    def function(head, lines):
        return head + "\n        pass" * (lines - 1) + "\n"

    assert list(oversized(function("def exact():", FUNCTION_LINES))) == []
    nested = "class A:\n" + function("    async def long():", FUNCTION_LINES + 1)
    assert list(oversized(nested)) == ["long has 41 lines"]
    assert list(oversized("x = 1\n" * 400)) == []
    assert list(oversized("x = 1\n" * 401)) == ["the module has 401 lines"]
