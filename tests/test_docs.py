"""The documents say what the code does: words, settings and commands are compared, not trusted."""

import re
from pathlib import Path

from slim.config import SETTINGS
from slim.metrics import REJECTIONS
from slim.types import Outcome
from slim.wire.errors import TABLE

ROOT = Path(__file__).parent.parent
API = (ROOT / "docs/api.md").read_text()
README = (ROOT / "README.md").read_text()


def words(text: str) -> set[str]:
    return set(re.findall(r"`([a-z_]+)`", text))


def test_the_error_table_has_every_type_code_and_status() -> None:
    table = API.partition("## Errors")[2].partition("## Words")[0]
    rows = [row for error, row in TABLE.items() if row.status != 499]
    assert {row.type for row in rows} <= words(table)
    assert {row.code for row in rows if row.code} <= words(table)
    assert all(str(row.status) in table for row in rows)
    known = {row.type for row in rows} | {row.code for row in rows if row.code} | {"param", "message", "error", "allow"}
    assert words(table) - known == set()


def test_the_metric_words_are_those_of_the_code() -> None:
    line = {name: words(row) for name, row in re.findall(r"\| `(\w+)\{\w+\}` \| (.*) \|", API)}
    assert line == {"slm_requests_total": {o.value for o in Outcome}, "slm_rejected_total": set(REJECTIONS)}


def test_the_readme_lists_every_setting_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(SLM_\w+)` \| (.*?) \|", README, re.MULTILINE))
    for setting in SETTINGS:
        shown = setting.show(setting.default)
        assert rows.pop(setting.variable) == (f"`{shown}`" if shown else "unset")
    assert rows == {}


def test_the_readme_tree_has_one_line_for_every_module() -> None:
    tree = README.partition("## Layout")[2]
    for path in (ROOT / "slim").rglob("*.py"):
        if path.name != "__init__.py":
            assert re.search(rf"\b{path.name}\s+\S", tree), f"{path} is not in the README's tree"


def test_no_document_has_a_gap_to_be_filled() -> None:
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        assert not re.search(r"^[A-Z_]{5,}$", path.read_text(), re.MULTILINE), path
