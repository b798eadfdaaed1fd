"""The API key that commands send to a server. Needs no HTTP library, as the planner has none."""

from collections.abc import Mapping

from nanoserve.errors import OptionError

KEY_VARIABLE = "NANOSERVE_API_KEY"


def key_headers(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the header with the API key that the environment holds; none where it has none.

    Raises:
        OptionError: It holds what no header can; the key is not quoted.
    """
    key = environment.get(KEY_VARIABLE, "").strip(" ")  # HTTP has no values that begin or end so
    if not (key.isascii() and key.isprintable()):
        message = f"The key in {KEY_VARIABLE} cannot be sent: it is not printable ASCII."
        raise OptionError(message)
    return {"authorization": f"Bearer {key}"} if key else {}


def key_advice(*, has_key: bool) -> str:
    """Return what to do where a server lets nobody in with what was sent."""
    if has_key:
        return (
            f"It refuses the key in {KEY_VARIABLE}: put there one that the server was started with."
        )
    return f"It wants an API key: put it into {KEY_VARIABLE}."
