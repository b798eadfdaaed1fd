"""What a JSON schema may not have, since an answer to it would fail half way."""

from typing import Any

MAX_OPTIONAL_PROPERTIES = 248  # in a row; 4 items each, of the 1,000 that grammars are held to


def crowded_object(schema: dict[str, Any]) -> str:
    """Say which bound an object of `schema` passes; '' where none does.

    llguidance finds it out in the middle of an answer: after the object's brace, or after a
    required property, each optional one up to the next required may follow.
    """
    waiting: list[Any] = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            num_optional = _most_optional(value)
            if num_optional > MAX_OPTIONAL_PROPERTIES:
                return (
                    f"an object has {num_optional} optional properties in a row and the most "
                    f"is {MAX_OPTIONAL_PROPERTIES}"
                )
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return ""


def _most_optional(schema: dict[str, Any]) -> int:
    """Return how many properties follow each other of which none is required."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return 0
    names = required if isinstance(required, list) else ()
    needed = {name for name in names if isinstance(name, str)}
    most = run = 0
    for name in properties:
        run = 0 if name in needed else run + 1
        most = max(most, run)
    return most
