"""The `llm` command: chat and completion models of extra-openai-models.yaml."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

MODELS = """
- model_id: chat
  model_name: {name}
  api_base: {url}/v1
  supports_schema: true
- model_id: completion
  model_name: {name}
  api_base: {url}/v1
  completion: true
"""
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 9}},
        "required": ["name"],
    }
)
SHORT = ("-o", "max_tokens", "12", "-o", "temperature", "0")

Llm = Callable[..., str]


@pytest.fixture
def llm(url: str, model_name: str, tmp_path: Path) -> Llm:
    """Return a function that runs `llm` with a configuration of its own."""
    (tmp_path / "extra-openai-models.yaml").write_text(MODELS.format(name=model_name, url=url))
    environment = os.environ | {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}

    def run(*arguments: str) -> str:
        command: list[str | Path] = [Path(sys.executable).with_name("llm"), *arguments]
        finished = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    return run


def test_models_are_listed(llm: Llm) -> None:
    """Both models are there."""
    listed = llm("models")

    assert ": chat" in listed
    assert ": completion" in listed


@pytest.mark.parametrize("model", ["chat", "completion"])
def test_stream_is_the_whole_answer(llm: Llm, model: str) -> None:
    """The same text comes with and without streaming."""
    streamed = llm("-m", model, "The capital of France is", *SHORT)
    whole = llm("-m", model, "The capital of France is", "--no-stream", *SHORT)

    assert streamed.strip()
    assert streamed == whole


def test_system_prompt_and_conversation(llm: Llm) -> None:
    """A conversation goes on, with its usage in the log."""
    llm("-m", "chat", "Say hi.", "-s", "Be brief.", *SHORT)
    llm("-c", "And again.", *SHORT)

    (entry,) = json.loads(llm("logs", "--json", "-n", "1"))
    assert entry["input_tokens"] > 0
    assert entry["output_tokens"] > 0


@pytest.mark.parametrize("stream", [(), ("--no-stream",)])
def test_schema(llm: Llm, stream: tuple[str, ...]) -> None:
    """An answer follows a schema."""
    answer = llm(
        "-m", "chat", "Invent a dog.", "--schema", SCHEMA, *stream, "-o", "temperature", "0"
    )

    assert isinstance(json.loads(answer)["name"], str)


@pytest.mark.parametrize("arguments", [(), ("--no-stream",)])
def test_endpoint_command(llm: Llm, url: str, model_name: str, arguments: tuple[str, ...]) -> None:
    """`llm openai endpoint` needs no configuration."""
    call = ("openai", "endpoint", f"{url}/v1", "Hi", "-m", model_name, *arguments, *SHORT)

    assert llm(*call).strip()
