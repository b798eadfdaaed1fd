"""/tokenize and /detokenize."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.socket.conftest import Served

Serve = Callable[..., Served]
MESSAGES = [{"role": "user", "content": "hi"}]


def test_prompt_is_tokenised(served: Served) -> None:
    """Count, limit and ids, and the tokens' texts where asked for."""
    body = served.post("/tokenize", prompt="až", return_token_strs=True)

    assert body == {
        "count": 3,
        "max_model_len": 512,
        "tokens": list("až".encode()),
        "token_strs": ["a", "bytes:\\xc5", "bytes:\\xbe"],
    }
    assert served.post("/tokenize", prompt="")["count"] == 0
    assert served.post("/tokenize", prompt="a", model="fake")["token_strs"] is None


def test_messages_count_as_in_a_chat_call(served: Served) -> None:
    """What /tokenize says is what usage bills."""
    count = served.post("/tokenize", messages=MESSAGES)["count"]

    usage = served.post("/v1/chat/completions", messages=MESSAGES, max_tokens=1)["usage"]

    assert count == usage["prompt_tokens"] == len("<user>hi\n<assistant>")


def test_ids_are_text_again(served: Served) -> None:
    """Every id inside the vocabulary can be shown."""
    assert served.post("/detokenize", tokens=list("až".encode())) == {"prompt": "až"}
    assert served.post("/detokenize", tokens=[]) == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/tokenize", {}, 400),
        ("/tokenize", {"prompt": "x", "messages": MESSAGES}, 400),
        ("/tokenize", {"messages": []}, 400),
        ("/tokenize", {"prompt": 5}, 400),
        ("/tokenize", {"prompt": "x", "chat_template": "{{ x }}"}, 400),
        ("/tokenize", {"prompt": "x", "model": "other"}, 404),
        ("/detokenize", {"tokens": [256]}, 400),
        ("/detokenize", {"tokens": [-1]}, 400),
        ("/detokenize", {"tokens": ["1"]}, 400),
        ("/detokenize", {}, 400),
    ],
)
def test_wrong_bodies_are_refused(
    served: Served, path: str, body: dict[str, Any], status: int
) -> None:
    """In the envelope, with the field's name."""
    response = served.http.post(path, json=body)

    assert response.status_code == status
    assert response.json()["error"]["param"] is not None


def test_messages_need_a_template(serve_in_thread: Serve) -> None:
    """A model without one tokenises prompts alone."""
    served = serve_in_thread(chat_template=None)

    assert served.http.post("/tokenize", json={"messages": MESSAGES}).status_code == 400
    assert served.post("/tokenize", prompt="x")["count"] == 1
