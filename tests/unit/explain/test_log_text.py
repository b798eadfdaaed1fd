"""From pasted logs to plain text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.explain.log_text import decode_log, plain_log
from tests.work_count import MAX_GROWTH, growth

SAYS = "Available KV cache memory: 55.15 GiB"


@pytest.mark.parametrize(
    "line",
    [
        f"INFO 05-12 10:11:12 [gpu_worker.py:298] {SAYS}",
        f"INFO 05-12 10:11:12 worker.py:298] {SAYS}",
        f"(EngineCore_0 pid=12) INFO 05-12 10:11:12 [gpu_worker.py:298] {SAYS}",
        f"(Worker_TP0 pid=23802) INFO 07-08 01:31:12 [gpu_worker.py:515] {SAYS}",
        f"(VllmWorker rank=1 pid=44) INFO 05-12 10:11:12 [gpu_worker.py:298] {SAYS}",
        f"(RayWorkerWrapper pid=339, ip=10.0.0.4) INFO 03-29 01:24:36 worker.py:272] {SAYS}",
        f"[rank0]: {SAYS}",
        f"[vllm]                 | INFO 06-02 05:17:18 [core.py:387] {SAYS}",
        f"vllm-1  | INFO 06-02 05:17:18 [core.py:387] {SAYS}",
        f"2026-04-19 12:21:45.867 | (EngineCore pid=207) INFO 04-19 10:21:45 [m.py:48] {SAYS}",
        f"[2025-03-14 09:20:11 DP0 TP0] {SAYS}",
        f"[23:17:01 TP7] {SAYS}",
        f" | [2025-03-10T15:07:20Z] ERROR 03-10 08:07:20 [core.py:302] {SAYS}",
        f"[TensorRT-LLM][INFO] {SAYS}",
        f"[02/14/2025-09:38:53] [TRT-LLM] [I] {SAYS}",
        f"0.00.476.244 I {SAYS}",
        f"[34333] 0.00.202.251 I {SAYS}",
        f"Dec 31 01:58:01 FORGE ollama[555324]: {SAYS}",
        f"ollama[1186]: {SAYS}",
        f"2026-05-08 11:50:14.753 [Info] (Process) (EngineCore pid=3043) {SAYS}",
        f"(Worker_TP0 pid=9) ERROR 02-07 18:18:59 [v1/executor/multiproc_executor.py:824] {SAYS}",
        f"\x1b[32mINFO\x1b[0m 05-12 10:11:12 [gpu_worker.py:298] \x1b[1m{SAYS}\x1b[0m",
        f"[0;36m(EngineCore_DP0 pid=21)[0;0m INFO 05-12 10:11:12 [gpu_worker.py:2] {SAYS}",
        f"> {SAYS}",
        f"   {SAYS}\r",
    ],
)
def test_prefixes_and_colours_go(line: str) -> None:
    """What a rank, a logger, a container or a terminal puts before a message is taken off."""
    assert plain_log(f"{line}\n").text == SAYS


def test_lines_cut_by_a_terminal_are_joined() -> None:
    """Lines of one width were one: a number cut in two is whole again."""
    text = f"{'x' * 55} {SAYS} and {'y' * 170}"
    cut = "\n".join(text[start : start + 70] for start in range(0, len(text), 70))

    assert SAYS in plain_log(cut).text


def test_a_cut_log_ends_where_it_ends() -> None:
    """The last line of a paste may be as wide as the terminal."""
    cut = "\n".join(("a" * 70, "b" * 70, "c" * 70))

    assert plain_log(cut).text == "a" * 70 + "b" * 70 + "c" * 70


def test_prefixes_upon_prefixes() -> None:
    """A message behind more of them than any tool prints keeps the rest."""
    assert plain_log("| " * 12 + SAYS).text.endswith(SAYS)


def test_lines_wrapped_at_words_read_as_one() -> None:
    """A gap is one space wide, whether it was a line's end or several spaces."""
    assert plain_log("Available KV cache\r\n      memory: 55.15\tGiB\r\n\r\n").text == SAYS


def test_windows_line_ends_are_line_ends() -> None:
    """A carriage return leaves nothing behind."""
    assert plain_log("a first line of it\r\nand a second line\r\n").text == (
        "a first line of it and a second line"
    )


@given(st.text(max_size=400))
def test_any_text_becomes_one_line(text: str) -> None:
    """Whatever the text, there is no line end and no escape in it afterwards."""
    plain = plain_log(text).text

    assert "\n" not in plain
    assert "\x1b" not in plain


@pytest.mark.parametrize("unit", ["\n", "a\n", "(", " ", "\x1b[", "[rank0]: ", "x" * 99 + "\n"])
def test_work_grows_with_the_text_alone(unit: str) -> None:
    """Four times as much of what a prefix starts with is four times the work."""
    small, large = (unit * (num_chars // len(unit)) for num_chars in (20_000, 80_000))

    assert growth(plain_log, small, large) <= MAX_GROWTH


@pytest.mark.parametrize("text", ["\n" * 1_000_000, "a\n" * 500_000])
def test_a_megabyte_of_short_lines_is_not_cut(text: str) -> None:
    """So many of them are no log: the text is kept, and where its lines were is not."""
    plain = plain_log(text)

    assert plain.text == " ".join(text.split())
    assert plain.starts == ()


@pytest.mark.parametrize(
    ("encoding", "num_zeros"),
    [("utf-8", 6000), ("utf-8", 6001), ("utf-16-le", 6000), ("utf-16-be", 6000)],
)
def test_a_hole_of_zero_bytes_before_a_log_is_nothing(encoding: str, num_zeros: int) -> None:
    """Rotation by copying and cutting leaves one where a program goes on writing."""
    hole = b"\0" * num_zeros

    assert decode_log(hole + f"{SAYS}\n".encode(encoding)).strip("\0") == f"{SAYS}\n"
