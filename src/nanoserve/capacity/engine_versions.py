"""Which versions of each engine there are, so that a plan is of one that exists.

Owns the newest release that was known when this was written. A version a little past it is
planned by the newest rules, and said; one that nobody released is refused.
"""

from nanoserve.errors import OptionError

Version = tuple[int, ...]

_AHEAD = 6  # releases past the newest known: half a year of the engine that releases fastest
_MOST_PATCH = 30  # of any release: SGLang's 0.5 has had the most, 23
_BUILDS_AHEAD = 3000  # of llama.cpp, which numbers each merge: half a year
# The newest of each first number: others of it were released before. Source: the package index
# and llama.cpp's builds, 2026-11.
_NEWEST: dict[str, dict[int, Version]] = {
    "vllm": {0: (0, 33, 0)},
    "sglang": {0: (0, 5, 23)},
    "tensorrt-llm": {0: (0, 21, 0), 1: (1, 4, 0)},
    "nanoserve": {0: (0, 1, 0)},  # this one; a test plans the package's version
}
_NEWEST_BUILD = 11434


def check_version(engine: str, version: Version, asked: str) -> None:
    """Refuse a version that nobody released.

    Args:
        engine: Its own name.
        version: Its numbers.
        asked: As it was written, for the message.

    Raises:
        OptionError: Says which versions are known.
    """
    if is_released(engine, version):
        return
    known = f"b1 to b{_NEWEST_BUILD}"
    if engine in _NEWEST:
        spans = [f"{first}.{newest[1]}" for first, newest in _NEWEST[engine].items()]
        known = f"up to {' and '.join(spans)}"
    message = (
        f"--engine {asked[:80]!r}: no such version of {engine} is known; known are those {known}. "
        f"Write one of them after the @, or leave it out for the newest."
    )
    raise OptionError(message)


def is_released(engine: str, version: Version) -> bool:
    """Whether there is such a version, or soon will be."""
    if engine == "llama.cpp":
        return len(version) == 1 and 1 <= version[0] <= _NEWEST_BUILD + _BUILDS_AHEAD
    of_engine = _NEWEST[engine]
    newest = of_engine.get(version[0])
    is_before_all = version[0] == _minor(version) == 0  # each began with 0.1 or later
    if newest is None or is_before_all or max(version[2:], default=0) > _MOST_PATCH:
        return False
    is_last = version[0] == max(of_engine) and engine != "nanoserve"  # we are what we are
    return _minor(version) <= newest[1] + (_AHEAD if is_last else 0)


def version_note(engine: str, version: Version | None) -> str | None:
    """Return that a version is past the newest known; None where it is not."""
    if version is None:
        return None
    if engine == "llama.cpp":
        is_past, newest = version[0] > _NEWEST_BUILD, f"b{_NEWEST_BUILD}"
    else:
        numbers = _NEWEST[engine][version[0]]
        is_past, newest = version > numbers, ".".join(map(str, numbers))
    if not is_past:
        return None
    return f"{engine} {newest} is the newest known: a later version is planned by its rules"


def _minor(version: Version) -> int:
    return version[1] if len(version) > 1 else 0
