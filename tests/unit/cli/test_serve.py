"""`serve`: the address it binds and prints."""

import pytest

from nanoserve.cli.serve import curl_line, serve_model, server_url
from nanoserve.errors import OptionError
from nanoserve.options import EngineOptions, ServerOptions


def test_ipv6_address_is_printed_in_brackets() -> None:
    """Both kinds of address make a URL that clients take, pasted into a shell."""
    assert server_url("127.0.0.1", 80) == "http://127.0.0.1:80"
    assert server_url("::1", 80) == "http://[::1]:80"
    assert curl_line(server_url("::1", 80), "m").startswith("curl 'http://[::1]:80'/v1/")


@pytest.mark.parametrize("host", ["a" * 70, "\u00e9" * 70, "a..b"])
def test_host_that_is_none_is_an_option_error(host: str) -> None:
    """No boot begins, and the message names the address."""
    with pytest.raises(OptionError, match=r"Cannot listen on .* Check --host"):
        serve_model(EngineOptions(), ServerOptions(host=host, port=0))
