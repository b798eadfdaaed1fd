"""Which suites there are, what each needs, and what it runs."""

from dataclasses import dataclass
from typing import Literal

ServerKind = Literal["default", "float32", "folder", "tiny"]

SERVER_FLAGS: dict[ServerKind, tuple[str, ...]] = {
    "default": (),
    "folder": (),
    "float32": ("--dtype", "float32"),
    "tiny": ("--max-model-len", "128"),
}


@dataclass(frozen=True, slots=True)
class Suite:
    """One public suite or client.

    Attributes:
        name: Also of its environment and of its test file, `test_<name>.py`.
        packages: Pinned requirements; the first is the suite's own. Installed in an
            environment apart, unless `is_in_main`.
        server: What is served to it; see `SERVER_FLAGS`.
        runs: What it runs, for the page.
        limit_s: After this the suite has failed.
        flags: Of pytest.
        is_in_main: Whether it runs in the server's own environment.
    """

    name: str
    packages: tuple[str, ...]
    server: ServerKind
    runs: str
    limit_s: float
    flags: tuple[str, ...] = ()
    is_in_main: bool = False


SUITES = (
    Suite(
        "openai_sdk",
        ("openai",),
        "float32",
        "every field, whole and streamed; each raw JSON strictly valid for the SDK's models, but "
        "for two nulls that OpenAI's API sends in completions and the SDK's types leave out: the "
        "reason of a chunk that is not the last, and the scores of a prompt's first token",
        900,
        is_in_main=True,
    ),
    Suite(
        "schemathesis",
        ("schemathesis==4.32.5",),
        "tiny",
        "`schemathesis run URL/openapi.json --max-examples 60 --seed 1`, all checks but "
        "`positive_data_acceptance`: what else is refused depends on the model",
        600,
    ),
    Suite(
        "lm_eval",
        (
            "lm-eval[api]==0.4.13",
            "transformers==5.24.0",
            "torch==2.13.0",
            "gguf==0.19.0",
            "accelerate==1.15.0",
        ),
        "float32",
        "`lm_eval run --model local-completions` and `--model hf`, 50 rows, four choices",
        900,
    ),
    Suite(
        "llm_cli",
        ("llm==0.36",),
        "default",
        "`llm -m chat`, `llm -m completion`, `llm openai endpoint`, with and without `--no-stream`",
        300,
    ),
    Suite(
        "langchain",
        ("langchain-tests==1.1.9", "langchain-openai==1.7.4"),
        "float32",
        "`ChatModelIntegrationTests` of langchain-tests, through `ChatOpenAI`",
        1200,
        (
            *("-o", "asyncio_mode=auto"),
            *("-o", "asyncio_default_test_loop_scope=session"),
            *("-o", "asyncio_default_fixture_loop_scope=session"),
        ),
    ),
    Suite(
        "guidellm",
        ("guidellm==0.8.1",),
        "folder",
        "`guidellm run --profile kind=concurrent,streams=2 --constraint kind=max_duration,seconds=15`",
        300,
    ),
    Suite(
        "prometheus",
        ("prometheus_client",),
        "default",
        "`prometheus_client.parser` on /metrics while six clients generate",
        300,
        is_in_main=True,
    ),
    Suite(
        "litellm",
        ("litellm==1.110.0",),
        "folder",
        "`litellm.completion` and `litellm.text_completion`, streams, tools, errors",
        300,
    ),
)
