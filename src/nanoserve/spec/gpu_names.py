"""From the spellings people use to a row of the GPU table. Knows no figures of any GPU.

`h100`, `RTX 4090`, `rtx-4090`, `4090`, `A100 80GB`, `NVIDIA A100-SXM4-80GB` and `2xH100`
all lead somewhere; a name that could be two cards with different memory is refused.
"""

import difflib
import re
from dataclasses import dataclass

from nanoserve.errors import OptionError
from nanoserve.spec.gpu_spec import GpuSpec, gpu_table

MAX_GPUS = 4096
_MAX_NAME_CHARS = 100
_MAX_NEAREST = 4
_IGNORED = frozenset(
    [
        "nvidia",
        "geforce",
        "tesla",
        "quadro",
        "amd",
        "instinct",
        "radeon",
        "gpu",
        "graphics",
        "generation",
        "edition",
        "workstation",
        "corporation",
        "inc",
    ]
)
# What a short name means where several cards carry it: the one most people have.
_PREFERRED = {
    frozenset({"h100"}): "H100 SXM",
    frozenset({"h100", "80gb"}): "H100 SXM",
    frozenset({"a100", "80gb"}): "A100 80GB SXM",
    frozenset({"h800"}): "H100 SXM",  # the same card with a slower link
    frozenset({"h800", "80gb"}): "H100 SXM",
    frozenset({"a800", "80gb"}): "A100 80GB SXM",
    frozenset({"gh200"}): "GH200 96GB",
    frozenset({"rtx", "pro", "6000"}): "RTX PRO 6000 Blackwell WS",
    frozenset({"rtx", "pro", "6000", "blackwell"}): "RTX PRO 6000 Blackwell WS",
    frozenset({"pro", "6000"}): "RTX PRO 6000 Blackwell WS",
}
_SPLIT = re.compile(r"(?<=\d)(?=ti|super|ada|sxm|pcie|nvl)|(?<=ti)(?=super)|(?<=rtx)(?=[a-z0-9])")
_WORD = re.compile(r"[a-z0-9]+")
_MEMORY = re.compile(r"(\d+)(?:g|gb|gib)")
_COUNT_FIRST = re.compile(
    r"(\d{1,2}(?=\s[a-z])|\d{1,5}(?=\s?[x\u00d7*]))\s?(?:[x\u00d7*]\s?)?(.+)", re.IGNORECASE
)
_COUNT_LAST = re.compile(r"(.+?)\s?(?:\sx|[:*\u00d7])\s?(\d{1,5})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """Several GPUs of one kind.

    Attributes:
        num_gpus: How many.
        gpu: Each of them.
    """

    num_gpus: int
    gpu: GpuSpec


def find_gpus(text: str) -> GpuGroup:
    """Return the GPUs that `text` names, with how many: `2xH100`, `H100 x 2` or `h100`.

    Raises:
        OptionError: The name is unknown or could be several cards; the nearest are listed.
    """
    short = " ".join(text[:_MAX_NAME_CHARS].split())
    first, last = _COUNT_FIRST.fullmatch(short), _COUNT_LAST.fullmatch(short)
    if first is not None:
        count, name = int(first[1]), first[2]
    elif last is not None:
        count, name = int(last[2]), last[1]
    else:
        count, name = 1, short
    if not 1 <= count <= MAX_GPUS:
        message = f"--gpu asks for {count} GPUs; 1 to {MAX_GPUS} can be planned"
        raise OptionError(message)
    return GpuGroup(count, find_gpu(name))


def find_gpu(name: str) -> GpuSpec:
    """Return the GPU that `name` means.

    Raises:
        OptionError: The name is unknown or could be several cards; the nearest are listed.
    """
    wanted = _words(name[:_MAX_NAME_CHARS])
    preferred = _PREFERRED.get(wanted)
    if preferred is not None:
        return next(gpu for gpu in gpu_table() if gpu.name == preferred)
    exact = [gpu for gpu in gpu_table() if wanted in (_words(gpu.name), _words(gpu.driver_name))]
    candidates = exact or [gpu for gpu in gpu_table() if wanted <= _all_words(gpu)]
    alike = _same_card(candidates, wanted) if wanted else []
    if len(alike) == 1:
        return alike[0]
    raise OptionError(_refusal(name, alike))


def _same_card(candidates: list[GpuSpec], wanted: frozenset[str]) -> list[GpuSpec]:
    """Drop the variants of a card (Ti, SUPER, NVL, ...) that the name does not ask for."""
    plain = [gpu for gpu in candidates if not _variants(gpu) - wanted]
    return plain or candidates


def _variants(gpu: GpuSpec) -> set[str]:
    return set(_words(gpu.name)) & {"ti", "super", "nvl", "max", "server"}


def _refusal(name: str, candidates: list[GpuSpec]) -> str:
    shown = name if len(name) <= _MAX_NAME_CHARS else f"{name[:_MAX_NAME_CHARS]}…"
    if candidates:
        names = ", ".join(gpu.name for gpu in candidates)
        return f"--gpu {shown!r} could be any of: {names}. Name one of them."
    names = ", ".join(_nearest(shown))
    return (
        f"No GPU is known as {shown!r}. Nearest: {names}. "
        "Name one of these, or state --gpu-mem and --bandwidth."
    )


def _nearest(name: str) -> list[str]:
    names = {_squash(gpu.name): gpu.name for gpu in gpu_table()}
    close = difflib.get_close_matches(_squash(name), names, n=_MAX_NEAREST, cutoff=0.0)
    return [names[key] for key in close]


def _all_words(gpu: GpuSpec) -> frozenset[str]:
    return _words(gpu.name) | _words(gpu.driver_name) | {f"{gpu.nominal_gb}gb"}


def _words(name: str) -> frozenset[str]:
    spaced = _SPLIT.sub(" ", name.casefold().replace("(", " ").replace("-", " "))
    return frozenset(_spelled(word) for word in _WORD.findall(spaced) if word not in _IGNORED)


def _spelled(word: str) -> str:
    memory = _MEMORY.fullmatch(word)
    if memory is not None:
        return f"{memory[1]}gb"
    return "sxm" if word.startswith("sxm") else word


def _squash(name: str) -> str:
    return "".join(_WORD.findall(name.casefold()))
