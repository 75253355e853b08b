"""Log lines: their form, and that nothing a value holds can forge or break one."""

import json
import logging
import re
import subprocess
import sys
from datetime import datetime, timedelta

import pytest

from slim.logs import configure

HOSTILE = "a\r\nb\tc\x1b[31md\x00\x7f\x85\u2028\u202e\udc80é"


@pytest.fixture
def lines(capsys, monkeypatch):
    """Log through a fresh set-up and return what standard error got, line by line."""
    root, slim = logging.getLogger(), logging.getLogger("slim")
    handlers, levels = root.handlers[:], (root.level, slim.level)
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(logging, "raiseExceptions", True)

    def lines(log, *, level="INFO", as_json=False):
        configure(level, as_json)
        log(logging.getLogger("slim.web"))
        return capsys.readouterr().err.split("\n")[:-1]

    yield lines
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    slim.setLevel(levels[1])


def event(message="done", **fields):
    return lambda logger: logger.info(message, extra={"fields": fields})


def failure(text):
    def log(logger):
        try:
            raise RuntimeError(text)
        except RuntimeError:
            logger.exception("it broke")

    return log


def test_a_text_line_is_clock_level_message_fields(lines):
    (line,) = lines(event("generation finished", request_id="07482c", ttft_ms=172.0))
    clock, rest = line[:12], line[12:]
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d\d\d", clock)
    assert rest == " INFO    generation finished request_id=07482c ttft_ms=172.0"


@pytest.mark.parametrize(
    ("value", "shown"),
    [("a b", '"a b"'), ("a=b", '"a=b"'), ('"', '"\\""'), ("", '""'), ("x status=200", '"x status=200"'), ("é", "é")],
)
def test_a_value_of_a_text_line_can_not_be_taken_for_another_field(lines, value, shown):
    (line,) = lines(event("done", path=value, cause=None))
    assert line[12:] == f" INFO    done path={shown}"


def test_a_text_line_without_fields_ends_with_the_message(lines):
    (line,) = lines(lambda logger: logger.warning("slow %s", "start"))
    assert line[12:] == " WARNING slow start"


def test_a_json_line_is_one_object_with_the_fields_beside_the_message(lines):
    (line,) = lines(event("done", request_id="x", status=200, queue_wait_ms=0.5, cause=None), as_json=True)
    record = json.loads(line)
    stamp = datetime.fromisoformat(record.pop("time"))
    assert stamp.utcoffset() == timedelta(0)
    assert record == {
        "level": "INFO",
        "logger": "slim.web",
        "message": "done",
        "request_id": "x",
        "status": 200,
        "queue_wait_ms": 0.5,
        "cause": None,
    }


def test_a_field_cannot_replace_the_head_of_a_json_line(lines):
    (line,) = lines(lambda logger: logger.error("m", extra={"fields": {"level": "x", "message": "y"}}), as_json=True)
    assert (json.loads(line)["level"], json.loads(line)["message"]) == ("ERROR", "m")


def test_values_without_a_json_word_become_text(lines):
    (line,) = lines(event(speed=float("nan"), wait=float("inf"), data=b"\xff"), as_json=True)

    def refuse(word):
        raise AssertionError(word)

    record = json.loads(line, parse_constant=refuse)
    assert (record["speed"], record["wait"], record["data"]) == ("nan", "inf", r"b'\xff'")


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("log", [event(HOSTILE), event(value=HOSTILE), event(**{HOSTILE: 1})])
def test_control_characters_cannot_break_a_line(lines, log, as_json):
    (line,) = lines(log, as_json=as_json)
    assert line.isprintable()


class HostileRepr:
    def __repr__(self):
        return HOSTILE


@pytest.mark.parametrize("as_json", [False, True])
def test_an_object_that_prints_control_characters_cannot_break_a_line(lines, as_json):
    (line,) = lines(event(value=HostileRepr()), as_json=as_json)
    assert line.isprintable()


def test_an_exception_is_one_line_in_json(lines):
    (line,) = lines(failure(HOSTILE), as_json=True)
    trace = json.loads(line)["exception"]
    assert trace.startswith("Traceback")
    assert "RuntimeError: a" in trace


def test_an_exception_in_text_is_indented_so_that_it_forges_no_event(lines):
    first, *below = lines(failure("x\n13:08:02.169 INFO    forged\x1b[31m"))
    assert first.endswith("ERROR   it broke")
    assert below[0] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") and line.isprintable() for line in below)
    assert below[-1].startswith("    13:08:02.169 INFO    forged")


def test_the_level_silences_what_is_below(lines):
    assert lines(event(), level="WARNING") == []
    assert len(lines(lambda logger: logger.debug("x"), level="DEBUG")) == 1


@pytest.mark.parametrize(("level", "heard"), [("DEBUG", ["WARNING"]), ("ERROR", [])])
def test_other_libraries_are_heard_from_warning_up(lines, level, heard):
    def log(_logger):
        other = logging.getLogger("hpack.hpack")
        other.info("authorization: secret")
        other.warning("odd")

    assert [line.split()[1] for line in lines(log, level=level)] == heard


def test_configuring_twice_logs_once(lines):
    lines(event())
    assert len(lines(event())) == 1


def test_a_line_that_cannot_be_written_is_lost_without_a_traceback_among_the_others(lines):
    assert lines(lambda logger: logger.info("%d", "no number"), as_json=True) == []


def test_a_reader_of_standard_error_that_left_does_not_end_the_process():
    program = """if True:
        import logging, sys
        from slim.logs import configure
        configure("INFO", False)
        sys.stdin.read()
        for number in range(1000):
            logging.getLogger("slim").info("line %d", number)
        print("alive")
    """
    with subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1, stderr=-1, text=True) as process:
        process.stderr.close()
        process.stdin.close()
        assert process.stdout.read() == "alive\n"
