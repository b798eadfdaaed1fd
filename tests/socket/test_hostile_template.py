"""A chat template that never ends is a 400, and the server goes on."""

from collections.abc import Callable

from nanoserve.text.chat_template import ChatTemplate
from nanoserve.text.template_process import rendered_apart
from tests.builders import HOSTILE_TEMPLATE
from tests.socket.conftest import Served


def test_an_endless_template_is_refused(serve_in_thread: Callable[..., Served]) -> None:
    """The call is refused before its client gives up, and the next one is answered."""
    with rendered_apart(ChatTemplate(HOSTILE_TEMPLATE, "", None)) as process:
        server = serve_in_thread(chat_template=process)

        for word, status in (("hello", 200), ("take for ever", 400), ("hello", 200)):
            response = server.http.post(
                "/v1/chat/completions",
                json={"messages": [{"role": "user", "content": word}], "max_tokens": 2},
            )
            assert response.status_code == status, response.text

        assert server.http.get("/health").status_code == 200
