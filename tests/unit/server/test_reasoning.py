"""Thinking apart from saying."""

import pytest

from nanoserve.server.message_parts import ContentPart, ReasoningPart
from nanoserve.server.reasoning import ReasoningSplitter


def split(text: str, size: int, is_open: bool = False) -> tuple[str, str]:
    """Return reasoning and content of a text that comes in pieces of `size`."""
    splitter = ReasoningSplitter(is_open)
    parts: list[ReasoningPart | ContentPart] = []
    for start in range(0, len(text), size):
        parts += splitter.push(text[start : start + size], is_last=False)
    parts += splitter.push("", is_last=True)
    return (
        "".join(part.text for part in parts if isinstance(part, ReasoningPart)),
        "".join(part.text for part in parts if isinstance(part, ContentPart)),
    )


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    ("text", "is_open", "reasoning", "content"),
    [
        ("<think>\nhm</think>\n\nyes", False, "hm", "yes"),
        ("\n<think>a < b</think>c", False, "a < b", "c"),
        ("hm\n</think>yes", True, "hm\n", "yes"),
        ("plain", False, "", "plain"),
        (" plain", False, "", " plain"),
        ("", False, "", ""),
        ("<think></think>", False, "", ""),
        ("<think>cut", False, "cut", ""),
        ("cut </thi", True, "cut </thi", ""),
    ],
)
def test_tags_part_reasoning_from_content(
    text: str, is_open: bool, reasoning: str, content: str, size: int
) -> None:
    """However the text is cut, no tag gets out and nothing else is lost."""
    assert split(text, size, is_open) == (reasoning, content)


def test_cut_tag_is_text_at_the_end() -> None:
    """What might have become a tag is text once nothing follows."""
    splitter = ReasoningSplitter(is_open=False)

    assert splitter.push("<thi", is_last=False) == []
    assert splitter.push("", is_last=True) == [ContentPart("<thi")]


def test_later_tag_is_text() -> None:
    """Only the first think block is reasoning."""
    splitter = ReasoningSplitter(is_open=False)

    parts = splitter.push("a <think>b</think>", is_last=True)

    assert parts == [ContentPart("a <think>b</think>")]
