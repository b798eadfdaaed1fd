"""SmolLM2-135M-Instruct, real weights, float32: the same tokens however they come about.

Half of the requests are greedy, half are drawn by a seed in as many ways as there are. All
are answered once undisturbed, 32 at a time with a cold cache; each test has them answered in
another way and compares token for token.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import pytest

from nanoserve.launch.llm import LLM
from nanoserve.sched.sampling_params import SamplingParams
from tests.native_kernels import needs_kernels
from tests.reference.prompts import PROMPTS
from tests.reference.smollm2 import answers, load_smollm2, smollm2_server

MAX_NUM_SEQS = 32
PENALTIES = {"presence_penalty": 0.4, "frequency_penalty": 0.3, "repetition_penalty": 1.2}
WAYS: list[dict[str, float]] = [
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.0},
    {"temperature": 2.0, "min_p": 0.05},
    {"temperature": 0.0} | PENALTIES,
    {"temperature": 2.0, "top_k": 50, "top_p": 0.95},
    {"temperature": 0.0},
    {"temperature": 1.2, "top_p": 0.8} | PENALTIES,
]

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Size:
    """How many prompts, and how many tokens of each answer."""

    num_prompts: int
    num_tokens: int

    @property
    def prompts(self) -> list[str]:
        """Every second or so prompt, so that short and long ones are in."""
        return PROMPTS[:: len(PROMPTS) // self.num_prompts][: self.num_prompts]

    @property
    def fields(self) -> list[dict[str, Any]]:
        """How each prompt is answered, in the words of the API and of `SamplingParams`."""
        return [
            way | {"seed": seed, "max_tokens": self.num_tokens, "ignore_eos": True}
            for seed, (_, way) in enumerate(zip(self.prompts, cycle(WAYS), strict=False))
        ]

    @property
    def samplings(self) -> list[SamplingParams]:
        return [SamplingParams(**fields) for fields in self.fields]


@dataclass(frozen=True)
class Undisturbed:
    """An engine without a prefix cache, and its answers to all requests at once."""

    llm: LLM
    size: Size
    token_ids: list[list[int]]

    @property
    def texts(self) -> list[str]:
        return [self.llm.tokenizer.decode(token_ids) for token_ids in self.token_ids]

    def answered_by(self, **options: Any) -> list[list[int]]:
        """Return what another engine answers."""
        llm = load_smollm2(**({"max_num_seqs": MAX_NUM_SEQS} | options))
        return answers(llm, self.size.prompts, self.size.samplings)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(Size(num_prompts=10, num_tokens=16), id="quick"),
        pytest.param(Size(num_prompts=32, num_tokens=64), id="full", marks=pytest.mark.exhaustive),
    ],
)
def size(request: pytest.FixtureRequest) -> Size:
    found: Size = request.param
    return found


@pytest.fixture(scope="module")
def undisturbed(size: Size) -> Undisturbed:
    llm = load_smollm2(max_num_seqs=MAX_NUM_SEQS, enable_prefix_caching=False)
    return Undisturbed(llm, size, answers(llm, size.prompts, size.samplings))


@dataclass(frozen=True)
class HttpAnswers:
    """What a server with a prefix cache said: first unary, then, of a warm cache, streamed."""

    unary: list[dict[str, Any]]
    streamed: list[list[Any]]


@pytest.fixture(scope="module")
def http_answers(undisturbed: Undisturbed) -> HttpAnswers:
    with (
        smollm2_server(max_num_seqs=MAX_NUM_SEQS) as server,
        ThreadPoolExecutor(MAX_NUM_SEQS) as clients,
    ):
        bodies = [
            fields | {"prompt": prompt}
            for prompt, fields in zip(
                undisturbed.size.prompts, undisturbed.size.fields, strict=True
            )
        ]
        unary = clients.map(lambda body: server.post("/v1/completions", **body), bodies)
        usage = {"stream_options": {"include_usage": True}}
        return HttpAnswers(
            list(unary),
            list(
                clients.map(lambda body: server.stream("/v1/completions", **body | usage), bodies)
            ),
        )


def test_alone_equals_crowd(undisturbed: Undisturbed) -> None:
    """A request alone, greedy or seeded, gives the tokens it gives among 32."""
    alone = [
        answers(undisturbed.llm, [prompt], [sampling])[0]
        for prompt, sampling in zip(
            undisturbed.size.prompts, undisturbed.size.samplings, strict=True
        )
    ]

    assert alone == undisturbed.token_ids


def test_chunked_prefill_equals_whole(undisturbed: Undisturbed) -> None:
    """Prompts cut into chunks of at most 16 tokens give the tokens of whole ones."""
    found = undisturbed.answered_by(max_num_seqs=16, max_num_batched_tokens=16)

    assert found == undisturbed.token_ids


@pytest.mark.parametrize("decode_mode", ["eager", "bucketed", "captured"])
def test_padded_equals_eager(undisturbed: Undisturbed, decode_mode: str) -> None:
    """Decode steps as they come, padded to a list of shapes, or replayed give the same tokens."""
    found = undisturbed.answered_by(decode_mode=decode_mode, warm=False)

    assert found == undisturbed.token_ids


@needs_kernels
def test_replayed_equals_eager_in_bfloat16(size: Size) -> None:
    """Native operators round a row alike however many there are and whoever calls them.

    Preempted, of a warm prefix cache, recorded late and evicted.
    """
    fields: dict[str, Any] = {"dtype": "bfloat16", "attention_backend": "native"}
    eager = load_smollm2(max_num_seqs=MAX_NUM_SEQS, decode_mode="eager", **fields)
    expected = answers(eager, size.prompts, size.samplings)
    replayed = load_smollm2(
        max_num_seqs=MAX_NUM_SEQS,
        decode_mode="captured",
        num_blocks=5 * size.num_prompts // 4,
        max_model_len=160,
        capture_limit=6,
        warm=False,
        **fields,
    )

    assert answers(replayed, size.prompts, size.samplings) == expected
    assert replayed.num_preemptions > 0
    assert answers(replayed, size.prompts, size.samplings) == expected


def test_preempted_equals_undisturbed(undisturbed: Undisturbed) -> None:
    """With a pool for little more than one request, preempted requests lose no token."""
    num_blocks = 5 * undisturbed.size.num_prompts // 4
    llm = load_smollm2(max_num_seqs=MAX_NUM_SEQS, num_blocks=num_blocks, max_model_len=160)

    assert answers(llm, undisturbed.size.prompts, undisturbed.size.samplings) == (
        undisturbed.token_ids
    )
    assert llm.num_preemptions > 0


def test_http_equals_python(undisturbed: Undisturbed, http_answers: HttpAnswers) -> None:
    """The server answers concurrent clients with the text that `LLM` gives."""
    texts = [body["choices"][0]["text"] for body in http_answers.unary]

    assert texts == undisturbed.texts


def test_stream_of_warm_cache_equals_unary(http_answers: HttpAnswers) -> None:
    """The parts of a stream make up the unary answer, its prompt's prefix cached or not."""
    unary = [body["choices"][0]["text"] for body in http_answers.unary]
    streamed = [
        "".join(choice["text"] for frame in frames[:-1] for choice in frame["choices"])
        for frames in http_answers.streamed
    ]
    cached_tokens = [
        frames[-2]["usage"]["prompt_tokens_details"]["cached_tokens"]
        for frames in http_answers.streamed
    ]

    assert streamed == unary
    assert sum(cached_tokens) > 0


@pytest.mark.parametrize(
    "dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize(
    ("size", "max_model_len"),
    [
        pytest.param(Size(num_prompts=5, num_tokens=14), 64, id="quick"),
        pytest.param(
            Size(num_prompts=32, num_tokens=64), 160, id="full", marks=pytest.mark.exhaustive
        ),
    ],
)
def test_deterministic_answers_do_not_depend_on_company(
    dtype: str, size: Size, max_model_len: int
) -> None:
    """With `--deterministic` a request has the same bits alone, in a crowd, chunked, preempted.

    Logprobs are compared exactly: they show a difference long before a token does.
    """
    fields = {"deterministic": True, "dtype": dtype, "enable_prefix_caching": False}
    crowd = load_smollm2(max_num_seqs=MAX_NUM_SEQS, **fields)
    tight = load_smollm2(
        max_num_seqs=16,
        max_num_batched_tokens=16,
        num_blocks=max_model_len // 16,  # one request's
        max_model_len=max_model_len,
        **fields,
    )
    prompts = size.prompts
    samplings = [replace(sampling, num_logprobs=1) for sampling in size.samplings]

    together = crowd.generate(prompts, samplings, show_progress=False)
    alone = [
        crowd.generate(prompt, sampling, show_progress=False)[0]
        for prompt, sampling in zip(prompts, samplings, strict=True)
    ]
    disturbed = tight.generate(prompts, samplings, show_progress=False)

    assert [output.outputs for output in alone] == [output.outputs for output in together]
    assert [output.outputs for output in disturbed] == [output.outputs for output in together]
    assert tight.num_preemptions > 0


@pytest.mark.exhaustive
def test_bfloat16_share_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Without `--deterministic`, some 64-token bfloat16 answers are the same alone as among 32."""
    sampling = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
    llm = load_smollm2(dtype="bfloat16", max_num_seqs=MAX_NUM_SEQS, enable_prefix_caching=False)
    crowd = answers(llm, PROMPTS, [sampling] * len(PROMPTS))
    alone = [answers(llm, [prompt], [sampling])[0] for prompt in PROMPTS]

    num_same = sum(a == b for a, b in zip(crowd, alone, strict=True))

    with capsys.disabled():
        sys.stdout.write(f"\nbfloat16, alone = among 32: {num_same} of {len(PROMPTS)}\n")
    assert num_same > 0
