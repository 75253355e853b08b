"""SSE framing, read back by an independent reader."""

import pytest

from slim.wire import sse
from support.sse import SseReader, read_chunks, read_events


def test_an_event_is_one_data_line_and_a_blank_line():
    assert sse.event('{"a":1}') == b'data: {"a":1}\n\n'


def test_done_is_the_event_that_openai_clients_wait_for():
    assert read_events(sse.DONE) == ["[DONE]"]


def test_a_comment_is_no_event():
    reader = SseReader()
    assert reader.feed(b": hello\n\n" + sse.event("1")) == ["1"]
    assert reader.comments == ["hello"]


def test_the_reader_waits_for_the_end_of_an_event():
    reader = SseReader()
    assert reader.feed(b"data: 1\n") == []
    with pytest.raises(AssertionError):
        reader.close()
    assert reader.feed(b"\n") == ["1"]
    reader.close()


@pytest.mark.parametrize("body", [b"id: 1\n\n", b"retry: 1000\n\n", b'{"error":1}\n\n'])
def test_the_reader_refuses_what_breaks_openai_clients(body):
    with pytest.raises(AssertionError):
        read_events(body)


@pytest.mark.parametrize("body", [b"data: 1\n\n", b"data: [DONE]\n\ndata: [DONE]\n\n"])
def test_the_reader_wants_done_once_at_the_end(body):
    with pytest.raises(AssertionError):
        read_chunks(body)
