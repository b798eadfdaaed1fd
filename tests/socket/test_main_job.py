"""The main job as a user meets it: the real command, the real model, real clients."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.native_kernels import HAS_NATIVE_STEPS

COMMAND = [sys.executable, "-m", "nanoserve"]
CAPITAL = "The capital of France is"
QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER_TIMEOUT_S = 300.0  # of a real model, on cores that others share

get = partial(httpx.get, timeout=ANSWER_TIMEOUT_S)
post = partial(httpx.post, timeout=ANSWER_TIMEOUT_S)
pytestmark = pytest.mark.slow


@dataclass
class Server:
    """A running `nanoserve serve`."""

    process: subprocess.Popen[str]
    lines: list[str]

    @property
    def url(self) -> str:
        return str(re.search(r"http://[\d.:]+", self.lines[-2])[0])  # type: ignore[index]

    @property
    def curl_line(self) -> str:
        return self.lines[-1]


def start(*arguments: str) -> Server:
    """Start a server and read its output up to the curl line."""
    process = subprocess.Popen(
        [*COMMAND, "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line.rstrip())
        if line.startswith("curl "):
            return Server(process, lines)
    raise AssertionError("\n".join(lines))


def stop(server: Server, number: int = signal.SIGINT) -> int:
    server.process.send_signal(number)
    with server.process:
        return server.process.wait(timeout=ANSWER_TIMEOUT_S)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    running = start("--port", "0", "--threads", "1")
    yield running
    assert stop(running) == 0


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)


def test_boot_prints_each_stage(server: Server) -> None:
    """Every stage has a line with seconds, and the last line is a curl command."""
    stages = [line.split()[0] for line in server.lines]

    assert stages[0] == "nanoserve"
    for name in ("import", "read", "plan", "weights", "pool", "ready"):
        assert name in stages
    assert stages[-1] == "curl"


def test_curl_line_answers_paris(server: Server) -> None:
    """The printed command, pasted as it is, answers with Paris."""
    result = subprocess.run(
        ["sh", "-c", f"{server.curl_line} --silent"], capture_output=True, text=True, check=True
    )

    assert json.loads(result.stdout)["choices"][0]["text"].startswith(" Paris")


def test_streamed_equals_unary(client: openai.OpenAI) -> None:
    """The concatenated stream is the unary text, for completions and for chat."""
    model = client.models.list().data[0].id
    unary = client.completions.create(model=model, prompt=CAPITAL, temperature=0, max_tokens=40)
    # Read to its end before the next call: in bfloat16 a neighbour may turn a near-tie.
    stream = client.completions.create(
        model=model, prompt=CAPITAL, temperature=0, max_tokens=40, stream=True
    )
    streamed_completion = "".join(chunk.choices[0].text for chunk in stream)
    chat = client.chat.completions.create(model=model, messages=QUESTION, temperature=0)
    chat_stream: Any = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, stream=True
    )

    assert unary.choices[0].text.startswith(" Paris")
    assert streamed_completion == unary.choices[0].text
    assert "Paris" in (chat.choices[0].message.content or "")
    assert chat.choices[0].finish_reason == "stop"
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chat_stream)
    assert streamed == chat.choices[0].message.content


def test_long_prompt_is_refused_with_numbers(server: Server) -> None:
    """A prompt over the context is a 400 with the limit, and the server goes on."""
    body = {"prompt": [504] * 3000, "max_tokens": 5}
    refused = post(f"{server.url}/v1/completions", json=body)

    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert "2048" in refused.json()["error"]["message"]
    assert get(f"{server.url}/health").status_code == 200


def test_health_and_memory_show_the_boot(server: Server) -> None:
    """The running process says what was planned, what was measured and what it has done."""
    post(f"{server.url}/v1/completions", json={"prompt": CAPITAL, "max_tokens": 4})
    health = get(f"{server.url}/health").json()
    memory = get(f"{server.url}/memory").json()

    decode_mode = "captured" if HAS_NATIVE_STEPS else "eager"
    assert (health["status"], health["boot"]["decode_mode"]) == ("ok", decode_mode)
    assert (health["loop"]["steps"]["decode"]["replayed"] > 0) == (decode_mode == "captured")
    blocks = health["loop"]["blocks"]
    assert blocks["total"] == memory["kv_pool"]["num_blocks"]
    assert blocks["free"] + blocks["used"] + blocks["cached"] == blocks["total"]
    assert memory["budget"] == health["boot"]["budget"]
    assert sum(line["planned_bytes"] for line in memory["budget"]) == memory["total_bytes"]
    assert 0 < memory["now"]["own_bytes"] < memory["total_bytes"]


def test_bias_forces_and_bans_a_token(server: Server) -> None:
    """100 makes a token the only one, -100 takes the likeliest away."""

    def text(**fields: Any) -> str:
        call = {"prompt": CAPITAL, "temperature": 0, "max_tokens": 5} | fields
        answer = post(f"{server.url}/v1/completions", json=call).json()
        return str(answer["choices"][0]["text"])

    tokens = post(f"{server.url}/tokenize", json={"prompt": " Paris"}).json()["tokens"]
    (paris,) = tokens

    assert text(logit_bias={str(paris): 100}) == " Paris" * 5
    assert not text(logit_bias={str(paris): -100}).startswith(" Paris")


def test_logprobs_are_finite_and_greedy_is_the_likeliest(server: Server) -> None:
    """Banned tokens, echo and a single candidate leave every number in [-9999, 0]."""
    call = {"prompt": CAPITAL, "max_tokens": 5, "echo": True, "logprobs": 5}
    call |= {"logit_bias": {"10": -100, "504": -100}, "top_k": 1}
    body = post(f"{server.url}/v1/completions", json=call)
    lists = json.loads(body.text, parse_constant=pytest.fail)["choices"][0]["logprobs"]
    tiny = {"prompt": CAPITAL, "max_tokens": 5, "temperature": 1e-6, "logprobs": 1}
    likeliest = post(f"{server.url}/v1/completions", json=tiny).json()["choices"][0]

    shown = [alternative for found in lists["top_logprobs"][1:] for alternative in found.values()]
    assert lists["token_logprobs"][0] is None
    assert all(-9999.0 <= number <= 0.0 for number in [*lists["token_logprobs"][1:], *shown])
    assert lists["top_logprobs"][1:]
    assert [max(found, key=found.get) for found in likeliest["logprobs"]["top_logprobs"]] == (
        likeliest["logprobs"]["tokens"]
    )


def test_scores_do_not_depend_on_how_they_are_asked_for(server: Server) -> None:
    """An answer's log-probabilities are those of the same text as an echoed prompt."""
    url = f"{server.url}/v1/completions"
    call: dict[str, Any] = {"prompt": CAPITAL, "temperature": 0, "max_tokens": 6, "logprobs": 0}
    answer = post(url, json=call).json()["choices"][0]
    prompt = post(f"{server.url}/tokenize", json={"prompt": CAPITAL}).json()["tokens"]
    text = {"prompt": CAPITAL + answer["text"]}
    whole = post(f"{server.url}/tokenize", json=text).json()["tokens"]

    call |= {"prompt": whole, "echo": True, "max_tokens": 0}
    scored = post(url, json=call).json()["choices"][0]["logprobs"]

    assert scored["tokens"][len(prompt) :] == answer["logprobs"]["tokens"]
    assert scored["token_logprobs"][len(prompt) :] == pytest.approx(
        answer["logprobs"]["token_logprobs"], abs=0.25
    )  # in bfloat16, in other company


def test_hot_streams_are_their_unary_text(server: Server) -> None:
    """At a temperature that writes any bytes: no cut characters, no empty deltas."""
    messages = [{"role": "user", "content": "🎉日本語čďž🎉日本語čďž"}]
    url = f"{server.url}/v1/chat/completions"
    # Asked once before: in bfloat16 a prompt that is cached may turn a near-tie.
    post(url, json={"messages": messages, "max_tokens": 1})
    for seed in range(2):
        call = {"messages": messages, "temperature": 2, "seed": seed, "max_tokens": 24}
        whole = post(url, json=call).json()["choices"][0]["message"]["content"]
        lines = post(url, json=call | {"stream": True}).text.split("\n\n")

        chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks[1:-1]]
        assert "".join(delta["content"] for delta in deltas) == whole
        assert all(delta["content"] for delta in deltas)


def test_keys_guard_a_server(tmp_path: Path) -> None:
    """With a file of keys all but /health wants one, and the curl line takes it from the shell."""
    keys = tmp_path / "keys"
    keys.write_text("a-secret-key\n")
    guarded = start("--port", "0", "--threads", "1", "--api-key-file", str(keys))
    try:
        refused = get(f"{guarded.url}/v1/models")
        result = subprocess.run(
            ["sh", "-c", f"{guarded.curl_line} --silent"],
            env={"NANOSERVE_API_KEY": "a-secret-key", "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        stop(guarded)

    assert refused.status_code == 401
    assert json.loads(result.stdout)["choices"][0]["text"].startswith(" Paris")
    assert not any("a-secret-key" in line for line in guarded.lines)


def test_chat_command_streams_an_answer(server: Server) -> None:
    """`nanoserve chat` reads a question and prints the model's answer."""
    result = subprocess.run(
        [*COMMAND, "chat", "--url", server.url, "--temperature", "0"],
        input="What is the capital of France?\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=ANSWER_TIMEOUT_S,
    )

    assert "Paris" in result.stdout


def test_bench_command_reports_rates(server: Server) -> None:
    """`nanoserve bench serve` loads the server and prints tokens per second."""
    flags = ["--concurrency", "2", "--num-requests", "2", "--prompt-tokens", "8"]
    result = subprocess.run(
        [*COMMAND, "bench", "serve", "--url", server.url, "--output-tokens", "4", *flags],
        capture_output=True,
        text=True,
        check=True,
        timeout=ANSWER_TIMEOUT_S,
    )

    assert re.search(r"output +\d+\.\d tokens/s", result.stdout)


def test_port_in_use_is_said_before_the_boot(server: Server) -> None:
    """A second server on the same port says so at once, with exit code 2."""
    port = server.url.rsplit(":", 1)[1]
    result = run_serve("--port", port)

    assert result.returncode == 2
    assert f"Cannot listen on 127.0.0.1:{port}" in result.stderr


def test_trace_file_that_cannot_be_written_is_said_before_the_boot(tmp_path: Path) -> None:
    """Nothing is loaded for a flag that cannot be honoured; exit code 2."""
    trace_file = str(tmp_path / "absent" / "trace.jsonl")
    result = run_serve("--port", "0", "--trace-file", trace_file)

    assert result.returncode == 2
    assert "weights" not in result.stdout
    assert "--trace-file" in result.stderr


def run_serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=ANSWER_TIMEOUT_S,
        check=False,
    )


def test_refused_models_exit_with_one_message(tmp_path: Path) -> None:
    """An unsupported architecture, a truncated file and a missing model exit 3 with one line."""
    config = {"architectures": ["MambaForCausalLM"], "model_type": "mamba"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    truncated = tmp_path / "model.gguf"
    truncated.write_bytes(b"GGUF\x03\x00\x00\x00\x01")
    for model, wanted in (
        (str(tmp_path), "MambaForCausalLM"),
        (str(truncated), "is damaged"),
        (str(tmp_path / "absent"), "absent"),
    ):
        result = run_serve(model, "--port", "0")

        assert result.returncode == 3, result.stderr
        assert wanted in result.stderr
        assert "Traceback" not in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1


def test_too_small_a_pool_exits_4() -> None:
    """A pool under one request of max_model_len stops the boot with flags that work."""
    result = run_serve("--port", "0", "--num-blocks", "10")

    assert result.returncode == 4
    assert "--max-model-len 160" in result.stderr
