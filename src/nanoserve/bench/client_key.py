"""The API key that commands send to a server. Needs no HTTP library, as the planner has none."""

from collections.abc import Mapping

KEY_VARIABLE = "NANOSERVE_API_KEY"


def key_headers(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the header with the API key that the environment holds; none where it has none."""
    key = environment.get(KEY_VARIABLE, "")
    return {"authorization": f"Bearer {key}"} if key else {}
