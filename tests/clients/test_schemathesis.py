"""Requests that schemathesis makes up from the server's own description: no 5xx, and no answer beyond it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.server import Server, clean_environment

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "negative_data_rejection",
    "unsupported_method",
)
"""Not `positive_data_acceptance`: that two fields exclude each other can't be said in the description."""


def fuzz(folder: Path, phases: str, examples: int, seed: int, seconds: float) -> dict:
    """schemathesis's report of a run with at most so many random requests for each operation."""
    pytest.importorskip("schemathesis")
    # A refusal for the size of a body, 413, does not count as one with schemathesis.
    with Server(folder, engine="fake", max_tokens_limit=64, max_body_bytes=2**26) as server:
        command = [Path(sys.executable).with_name("schemathesis"), "run", server.wait_ready().url + "/openapi.json"]
        options = {"max-examples": examples, "seed": seed, "checks": ",".join(CHECKS), "phases": phases}
        written = [f"--{name}={value}" for name, value in options.items()]
        report = folder / "report.json"
        written += ["--no-shrink", "--continue-on-failure", "--report=json", f"--report-json-path={report}"]
        done = subprocess.run(
            [*command, *written], cwd=folder, env=clean_environment(), capture_output=True, text=True, timeout=seconds
        )
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
        assert server.process.poll() is None
    return json.loads(report.read_text())


def test_every_field_at_and_beyond_its_bounds_gets_no_5xx(tmp_path):
    report = fuzz(tmp_path, "coverage", examples=1, seed=1, seconds=300)
    assert report["operations"]["tested"] == report["operations"]["total"] >= 8
    assert report["test_cases"]["generated"] >= 2000


@pytest.mark.slow
def test_five_thousand_made_up_requests_get_no_5xx(tmp_path):
    report = fuzz(tmp_path, "coverage,fuzzing", examples=400, seed=2, seconds=7200)
    assert report["test_cases"]["generated"] >= 5000
