"""What is released: the wheel holds the package and nothing else, the sdist holds all that a release is proved with."""

import email
import json
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import slim

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TEST_COMMAND = (
    "python3 -m venv .venv && CMAKE_ARGS=-DLLAVA_BUILD=OFF .venv/bin/pip install '.[smollm2,dev]' && .venv/bin/pytest"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel, built from the sdist, and the sdist itself, as paths."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def relative_files(folder):
    return {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*") if path.is_file()}


def test_the_wheel_holds_the_package_and_its_metadata_only(built):
    names = zipfile.ZipFile(built[0]).namelist()
    info = f"slim_serve-{slim.__version__}.dist-info"
    package = {str(path.relative_to(ROOT)) for path in (ROOT / "slim").rglob("*.py")} | {"slim/py.typed"}
    assert {name for name in names if not name.startswith(f"{info}/")} == package
    assert {name.removeprefix(f"{info}/") for name in names if name.startswith(f"{info}/")} == {
        *("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    }


def test_the_wheel_is_for_every_system_and_carries_the_version(built):
    assert built[0].name == f"slim_serve-{slim.__version__}-py3-none-any.whl"


def test_the_wheel_brings_the_command(built):
    info = f"slim_serve-{slim.__version__}.dist-info"
    assert "slim-serve = slim.cli:main" in zipfile.ZipFile(built[0]).read(f"{info}/entry_points.txt").decode()


def test_the_page_text_is_the_readme(built):
    info = f"slim_serve-{slim.__version__}.dist-info"
    page = email.message_from_bytes(zipfile.ZipFile(built[0]).read(f"{info}/METADATA"))
    assert page["Description-Content-Type"] == "text/markdown"
    assert (ROOT / "README.md").read_text() in page.get_payload(decode=True).decode()


def test_the_sdist_holds_tests_documents_and_the_check(built):
    prefix = f"slim_serve-{slim.__version__}/"
    with tarfile.open(built[1]) as archive:
        names = {name.removeprefix(prefix) for name in archive.getnames()}
    wanted = {"README.md", "CHANGELOG.md", "LICENSE", ".env.example", ".ci/run", "pyproject.toml"}
    for folder in ("slim", "tests", "docs", "bench"):
        wanted |= {name for name in relative_files(folder) if "__pycache__" not in name}
    assert wanted - names == set()


def test_the_engine_room_is_pinned():
    assert {"hypercorn==0.18.0", "trio==0.35.0"} < set(PROJECT["dependencies"])
    assert "llama-cpp-python==0.3.36" in PROJECT["optional-dependencies"]["llama"]


def test_the_installed_package_is_what_is_tested():
    try:
        installed = metadata.distribution("slim-serve")
    except metadata.PackageNotFoundError:
        pytest.skip("slim-serve is not installed: the folder is tested")
    if json.loads(installed.read_text("direct_url.json") or "{}").get("dir_info", {}).get("editable"):
        pytest.skip("slim-serve is installed as editable: the folder is tested")
    assert Path(slim.__file__) == Path(str(installed.locate_file("slim/__init__.py")))
    assert installed.version == slim.__version__


def test_the_readme_and_the_check_hold_the_same_test_command():
    for name in ("README.md", ".ci/run"):
        assert TEST_COMMAND in [line.strip() for line in (ROOT / name).read_text().splitlines()], name


def test_the_changelog_tells_of_this_version():
    assert f"## [{slim.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
