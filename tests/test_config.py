"""Settings: where a value comes from, what is refused and how the refusal reads."""

import argparse
import os
from pathlib import Path

import pytest

from slim.config import SETTINGS, Settings, add_flags, load_settings
from slim.errors import ConfigError

ROOT = Path(__file__).parents[1]


@pytest.fixture
def dotenv(tmp_path):
    return tmp_path / ".env"


@pytest.fixture
def load(dotenv):
    def load(environ=None, flags=None):
        return load_settings(flags, environ or {}, dotenv)

    return load


def parse_flags(*arguments):
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return vars(parser.parse_args(arguments))


@pytest.mark.parametrize("blank", [" ", "\t", "  \n"])
def test_a_blank_key_is_no_wish_for_an_open_server(load, blank):
    with pytest.raises(ConfigError, match="SLM_API_KEY"):
        load({"SLM_API_KEY": blank})


def test_nothing_given_means_defaults(load):
    assert load() == Settings()
    assert Settings().port == 8000


def test_a_flag_wins_over_the_environment_and_that_over_dotenv(load, dotenv):
    dotenv.write_text("SLM_PORT=1\nSLM_REPLICAS=2\nSLM_MAX_BATCH=3\n")
    settings = load({"SLM_PORT": "10", "SLM_REPLICAS": "20"}, {"port": "100"})
    assert (settings.port, settings.replicas, settings.max_batch) == (100, 20, 3)


def test_an_empty_value_counts_as_not_given_in_every_source(load, dotenv):
    dotenv.write_text("SLM_PORT=7\nSLM_HOST=\nSLM_N_CTX\n")
    assert load({"SLM_PORT": "", "SLM_HOST": "  "}, {"port": "", "n_ctx": None}) == Settings(port=7)


OTHER = {
    "engine": ("fake", "fake"),
    "model_path": ("models/a b.gguf", "models/a b.gguf"),
    "n_threads": ("3", 3),
    "n_gpu_layers": ("-1", -1),
    "kv_type": ("q8_0", "q8_0"),
    "pooling": ("cls", "cls"),
    "log_level": ("DEBUG", "DEBUG"),
    "allowed_hosts": ("slim, [FD00::0:1],*", ("slim", "fd00::1", "*")),
    "cors_origins": ("https://a.example:8443, tauri://localhost", ("https://a.example:8443", "tauri://localhost")),
}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_has_a_variable_and_a_flag(load, setting):
    guess = {bool: ("true", True), float: ("1.5", 1.5), int: ("100", 100)}.get(type(setting.default), ("name", "name"))
    if setting.name == "replicas":
        guess = ("4", 4)
    if setting.name == "max_body_bytes":
        guess = ("2048", 2048)
    text, value = OTHER.get(setting.name, guess)
    assert value != setting.default
    by_variable = load({"SLM_" + setting.name.upper(): text})
    by_flag = load(flags=parse_flags(f"{setting.flag}={text}"))
    assert getattr(by_variable, setting.name) == value
    assert type(getattr(by_variable, setting.name)) is type(value)
    assert by_flag == by_variable


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_the_shown_default_is_read_back_as_the_default(load, setting):
    assert load({setting.variable: setting.show(setting.default)}) == Settings()


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("port", " 5 ", 5),
        ("port", "+5", 5),
        ("port", "0", 0),
        ("port", "65535", 65535),
        ("n_threads", "auto", None),
        ("request_timeout_s", "5", 5.0),
        ("request_timeout_s", ".5", 0.5),
        ("request_timeout_s", "1e2", 100.0),
        ("drain_s", "0", 0.0),
        ("log_level", "debug", "DEBUG"),
        ("model_path", "~/$HOME/%s/ü #1.gguf", "~/$HOME/%s/ü #1.gguf"),
        *(("mlock", text, True) for text in ("true", "1", "yes", "on", "True", "YES")),
    ],
)
def test_sensible_spellings_are_taken(load, name, text, value):
    assert getattr(load({"SLM_" + name.upper(): text}), name) == value


def test_a_line_of_dotenv_that_says_nothing_is_named(load, dotenv):
    dotenv.write_text("SLM_PORT=1\nwhat is this?\n")
    with pytest.raises(ConfigError, match="line 2"):
        load()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_named_pipe_as_dotenv_is_not_waited_for(load, dotenv):
    os.mkfifo(dotenv)
    assert load() == Settings()


@pytest.mark.parametrize("text", ["false", "0", "no", "off", "False", "NO"])
def test_a_false_variable_overrides_a_true_one_below(load, dotenv, text):
    dotenv.write_text("SLM_LOG_JSON=true")
    assert load({"SLM_LOG_JSON": text}).log_json is False


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("SLM_PORT", "65536"),
        ("SLM_PORT", "-1"),
        ("SLM_PORT", "8000.0"),
        ("SLM_PORT", "8_000"),
        ("SLM_PORT", "٨٠"),
        ("SLM_PORT", "0x50"),
        ("SLM_PORT", "9" * 5000),
        ("SLM_PORT", "tcp://10.0.0.1:80"),
        ("SLM_N_CTX", "15"),
        ("SLM_N_THREADS", "0"),
        ("SLM_REPLICAS", "65"),
        ("SLM_MAX_BATCH", "129"),
        ("SLM_PREFILL_CHUNK", "513"),
        ("SLM_MAX_QUEUE_SIZE", "-1"),
        ("SLM_REQUEST_TIMEOUT_S", "0"),
        ("SLM_REQUEST_TIMEOUT_S", "nan"),
        ("SLM_REQUEST_TIMEOUT_S", "inf"),
        ("SLM_REQUEST_TIMEOUT_S", "1e999"),
        ("SLM_REQUEST_TIMEOUT_S", "1_0"),
        ("SLM_REQUEST_TIMEOUT_S", "10s"),
        ("SLM_DRAIN_S", "-0.1"),
        ("SLM_MLOCK", "maybe"),
        ("SLM_KV_TYPE", "q4_0"),
        ("SLM_LOG_LEVEL", "TRACE"),
        ("SLM_MODEL_PATH", "a\x00b"),
        ("SLM_HOST", "a\nb"),
        ("SLM_MODEL_NAME", "\udc80"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_the_variable_and_the_value(load, variable, text):
    with pytest.raises(ConfigError) as caught:
        load({variable: text})
    message = str(caught.value)
    assert message.startswith(f"{variable}: {text!r}"[:60])
    assert len(message) < 250
    assert message.isprintable()


def test_a_wrong_value_says_what_would_be_right_and_where_it_stands(load, dotenv):
    dotenv.write_text("SLM_DRAIN_S=soon")
    with pytest.raises(ConfigError) as caught:
        load({"SLM_PORT": "http"}, {"replicas": "0"})
    assert str(caught.value) == (
        "SLM_PORT: 'http' is not a whole number from 0 to 65535; "
        "--replicas: '0' is not a whole number from 1 to 64; "
        f"SLM_DRAIN_S in {dotenv}: 'soon' is not a number of seconds, at least 0 and at most 86400"
    )


def test_a_wrong_value_below_a_right_one_does_not_matter(load):
    assert load({"SLM_PORT": "http"}, {"port": "80"}).port == 80


def test_mlx_is_named_as_not_built(load):
    with pytest.raises(ConfigError, match=r"SLM_ENGINE: 'mlx' is not one of llama_cpp, fake \(mlx is not built"):
        load({"SLM_ENGINE": "mlx"})


def test_unknown_names_are_warnings_that_name_the_nearest_setting(load, dotenv):
    dotenv.write_text("SLM_REPLICA=2\nOTHER=1\n")
    settings = load({"SLM_MODEL": "a.gguf", "SLM_SERVICE_HOST": "10.0.0.1", "PATH": "/bin"})
    assert settings.warnings == (
        "SLM_MODEL is not a setting; did you mean SLM_MODEL_PATH?",
        "SLM_REPLICA is not a setting; did you mean SLM_REPLICAS?",
        "SLM_SERVICE_HOST is not a setting",
    )


def test_dotenv_is_read_without_interpolation_and_with_a_byte_order_mark(load, dotenv):
    dotenv.write_text("SLM_MODEL_NAME=${HOME}$x\n", encoding="utf-8-sig")
    assert load({"HOME": "/root"}).model_name == "${HOME}$x"


def test_a_dotenv_that_is_no_text_is_an_error_that_names_it(load, dotenv):
    dotenv.write_bytes("SLM_PORT=80\n".encode("utf-16"))
    with pytest.raises(ConfigError, match=r"\.env can't be read"):
        load()


def test_the_working_directory_dotenv_is_the_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(".env").write_text("SLM_PORT=81")
    assert load_settings(environ={}).port == 81


def test_flags_not_given_leave_lower_sources_alone(load):
    assert load({"SLM_PORT": "5"}, parse_flags()) == Settings(port=5)


def test_a_switch_may_stand_without_a_value(load):
    assert load(flags=parse_flags("--log-json")).log_json is True
    assert load({"SLM_LOG_JSON": "1"}, parse_flags("--log-json", "off")).log_json is False


def test_the_seed_flags_keep_their_names():
    given = parse_flags(
        *("--model", "m.gguf", "--engine", "fake", "--host", "h", "--port", "1", "--replicas", "2", "--n-threads", "3")
    )
    assert {name: text for name, text in given.items() if text is not None} == {
        "model_path": "m.gguf",
        "engine": "fake",
        "host": "h",
        "port": "1",
        "replicas": "2",
        "n_threads": "3",
    }


def test_help_tells_meaning_variable_and_default(capsys):
    with pytest.raises(SystemExit):
        parse_flags("--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "TCP port to listen on; 0 takes a free one (SLM_PORT, default 8000)" in text


def test_env_example_says_every_setting_with_meaning_rule_and_default():
    head, *blocks = (ROOT / ".env.example").read_text().strip().split("\n\n")
    assert head.startswith("# ")
    assert blocks == [
        f"# {setting.meaning}.\n# Value: {setting.rule.wanted}.\n{setting.variable}={setting.show(setting.default)}"
        for setting in SETTINGS
    ]


def test_a_copied_env_example_changes_nothing():
    assert load_settings(environ={}, dotenv=ROOT / ".env.example") == Settings()
