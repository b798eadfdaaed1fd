"""Our tokenizers and templates against transformers', on one corpus."""

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from nanoserve.text.chat_template import ChatTemplate
from nanoserve.text.gguf_tokenizer import tokenizer_from_gguf
from nanoserve.text.tokenizer import Tokenizer, tokenizer_from_folder
from tests.text_models import (
    CONVERSATIONS,
    CORPUS,
    byte_level_metadata,
    sentencepiece_metadata,
    smollm2_metadata,
    smollm2_path,
    write_gguf,
)
from tests.work_count import work_of

MAX_CALLS_PER_ENTRY = 4.5
_LLAMA_STYLE = """\
{{- bos_token }}
{%- if messages[0].role == "system" %}
    {%- set system = messages[0]["content"] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|header|>system<|/header|>\\n\\nToday: " + (date if date is defined else "unknown") + "\\n" }}
{%- if tools is not none %}
    {{- "Tools:\\n" }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
        {{- "\\n" }}
    {%- endfor %}
{%- endif %}
{{- system + "<|eot|>" }}
{%- for message in messages %}
    {%- if not (message.role == "tool" or "tool_calls" in message) %}
        {{- "<|header|>" + message.role + "<|/header|>\\n\\n" + message.content | trim + "<|eot|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|header|>assistant<|/header|>\\n\\n" }}
{%- endif %}
"""

_QWEN_STYLE = """\
{%- if tools %}
    {{- '<|open|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools><|close|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|open|>system\\n' ~ messages[0].content ~ '<|close|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages | length - 1, seen=0) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.seen == 0 and message.role == "user" %}
        {%- set ns.seen = 1 %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "system" %}{%- continue %}{%- endif %}
    {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
    {{- '<|open|>' + message.role + ('*' if loop.index0 == ns.last else '') + '\\n' + content }}
    {{- '<|close|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|open|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

_MISTRAL_STYLE = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('After the optional system message, roles must alternate.') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.last and system_message is defined %}
            {{- '[INST] ' + system_message + '\\n\\n' + message['content'] + '[/INST]' }}
        {%- else %}
            {{- '[INST] ' + message['content'] + '[/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {% generation %}{{- ' ' + message['content'] | trim + eos_token }}{% endgeneration %}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are supported.') }}
    {%- endif %}
{%- endfor %}
"""

_STYLES = {"llama": _LLAMA_STYLE, "qwen": _QWEN_STYLE, "mistral": _MISTRAL_STYLE}
_TOOLS = [
    {"type": "function", "function": {"name": "größe", "parameters": {"<a>": ["&", 1.5, None]}}}
]


@functools.cache
def _auto_tokenizer(folder: Path, gguf_file: str | None = None) -> Any:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers  # reads HF_HUB_OFFLINE when it is imported

    return transformers.AutoTokenizer.from_pretrained(str(folder), gguf_file=gguf_file)


@functools.cache
def _smollm2() -> tuple[Tokenizer, Any]:
    path = smollm2_path()
    return tokenizer_from_gguf(smollm2_metadata()), _auto_tokenizer(path.parent, path.name)


def _assert_equal(ours: Tokenizer, theirs: Any) -> None:
    """Same ids, same text, same special tokens, on the whole corpus."""
    for text in CORPUS:
        for add_special_tokens in (True, False):
            token_ids = ours.encode(text, add_special_tokens=add_special_tokens)
            assert token_ids == theirs.encode(text, add_special_tokens=add_special_tokens), text
        for skip in (True, False):
            decoded = ours.decode(token_ids, skip_special_tokens=skip)
            assert decoded == theirs.decode(token_ids, skip_special_tokens=skip), text
    added = theirs.added_tokens_decoder
    assert ours.special_token_ids == {i for i, token in added.items() if token.special}
    assert (ours.bos_token, ours.eos_token) == (theirs.bos_token, theirs.eos_token)
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)
    assert ours.vocab_size == len(theirs)
    assert ours.chat_template == theirs.chat_template


def test_smollm2_equals_transformers() -> None:
    """The default model's GGUF file gives transformers' ids and text, in every script."""
    _assert_equal(*_smollm2())


def test_smollm2_is_built_in_few_calls() -> None:
    """Four for each of its 49,152 tokens and 48,900 merges: the rest is left to the library."""
    metadata = smollm2_metadata()
    num_entries = sum(len(metadata[f"tokenizer.ggml.{key}"]) for key in ("tokens", "merges"))

    work = work_of(lambda: tokenizer_from_gguf(metadata))

    assert num_entries == 49_152 + 48_900
    assert work.num_calls < MAX_CALLS_PER_ENTRY * num_entries


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2", "tekken"])
def test_byte_level_file_equals_transformers(tmp_path: Path, pre: str) -> None:
    """Every pre-tokenizer cuts text as transformers does for the same file."""
    metadata = byte_level_metadata(pre)
    for key in ("tokens", "token_type"):  # what lies outside the byte alphabet gets new ids there
        del metadata[f"tokenizer.ggml.{key}"][-1]
    metadata["tokenizer.ggml.tokens"][3] = "<end>"
    metadata["tokenizer.ggml.add_bos_token"] = True
    write_gguf(tmp_path / "m.gguf", metadata)

    _assert_equal(tokenizer_from_gguf(metadata), _auto_tokenizer(tmp_path, "m.gguf"))


@pytest.mark.parametrize("flags", [{}, {"add_bos_token": False, "add_eos_token": True}])
def test_sentencepiece_file_equals_transformers(tmp_path: Path, flags: dict[str, bool]) -> None:
    """Merges recovered from scores, byte fallback and the leading blank are transformers'."""
    metadata = sentencepiece_metadata()
    metadata |= {f"tokenizer.ggml.{key}": flag for key, flag in flags.items()}
    write_gguf(tmp_path / "m.gguf", metadata)

    _assert_equal(tokenizer_from_gguf(metadata), _auto_tokenizer(tmp_path, "m.gguf"))


@pytest.mark.parametrize("add_bos_token", [None, True, False])
@pytest.mark.parametrize("build", [byte_level_metadata, sentencepiece_metadata])
def test_folder_equals_transformers(tmp_path: Path, build: Any, add_bos_token: bool | None) -> None:
    """A folder gives transformers' ids, whatever `add_bos_token` in the config says."""
    metadata = build() | {"tokenizer.ggml.add_bos_token": True}
    config: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": "{{ 1 }}"}
    config |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": metadata["tokenizer.ggml.tokens"][2],
    }
    if add_bos_token is not None:
        config["add_bos_token"] = add_bos_token
    tokenizer_from_gguf(metadata)._backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))

    _assert_equal(tokenizer_from_folder(tmp_path), _auto_tokenizer(tmp_path))


@pytest.mark.parametrize("index", range(len(CONVERSATIONS)))
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_prompt_ids_equal_transformers(index: int, add_generation_prompt: bool) -> None:
    """A rendered and tokenised conversation is transformers' `apply_chat_template`."""
    ours, theirs = _smollm2()
    template = ChatTemplate(ours.chat_template or "", ours.bos_token, ours.eos_token)
    messages = CONVERSATIONS[index]

    text = template.render(messages, add_generation_prompt=add_generation_prompt)

    expected = theirs.apply_chat_template(messages, add_generation_prompt=add_generation_prompt)
    assert ours.encode(text, add_special_tokens=False) == expected["input_ids"]


@pytest.mark.parametrize("style", sorted(_STYLES))
@pytest.mark.parametrize("index", [0, 1, 2, 3, 5])
@pytest.mark.parametrize(
    "variables", [{}, {"tools": _TOOLS, "date": "1 May", "enable_thinking": False}]
)
def test_rendered_text_equals_transformers(
    style: str, index: int, variables: dict[str, Any]
) -> None:
    """Templates in the manner of three families render to transformers' text."""
    _, theirs = _smollm2()
    template = ChatTemplate(_STYLES[style], theirs.bos_token, theirs.eos_token)

    expected = theirs.apply_chat_template(
        CONVERSATIONS[index],
        chat_template=_STYLES[style],
        tokenize=False,
        add_generation_prompt=True,
        **variables,
    )

    assert template.render(CONVERSATIONS[index], **variables) == expected
