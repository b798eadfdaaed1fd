"""`nanoserve compare`: many plans of a model side by side, as text or JSON."""

import json
from dataclasses import replace

from nanoserve.capacity.compare_json import comparison_as_dict
from nanoserve.capacity.compare_table import compare_lines
from nanoserve.capacity.comparison import Axes, compare, compare_savings, default_axes
from nanoserve.capacity.plan_answer import answer
from nanoserve.cli.compare_options import CompareOptions
from nanoserve.cli.plan import DOES_NOT_FIT, FITS, asked_weight_format, gpus_of, query_of
from nanoserve.cli.plan_options import PlanOptions
from nanoserve.errors import OptionError


def run_compare(model: str, varied: CompareOptions, common: PlanOptions, *, as_json: bool) -> int:
    """Print the plans and return the exit code: 0 where any serves, else 4.

    Args:
        model: As `nanoserve plan` takes it.
        varied: The axes.
        common: What all plans share.
        as_json: Print JSON.

    Raises:
        NanoserveError: The model, a GPU or an option is refused; `main` prints it.
    """
    names = _parts("--gpu", varied.gpu)
    gpus = tuple(gpus_of(replace(common, gpu=name)) for name in names)
    query = query_of(model, replace(common, gpu=names[0] if names else None))
    tps = tuple(_whole("--tp", text) for text in _parts("--tp", varied.tp))
    first = answer(query)
    defaults = default_axes(first)
    names = _parts("--quantization", varied.quantization)
    formats = tuple(asked_weight_format(name, query.engine) for name in names)
    axes = Axes(
        gpus=gpus,
        weight_formats=formats or defaults.weight_formats,
        kv_cache_dtypes=_parts("--kv-cache-dtype", varied.kv_cache_dtype)
        or defaults.kv_cache_dtypes,
        tps=tps,
    )
    rows, savings = compare(query, axes), compare_savings(first)
    if as_json:
        print(json.dumps(comparison_as_dict(query, rows, savings), indent=2))
    else:
        print(*compare_lines(rows, savings), sep="\n")
    serves = any(row.plan is not None and row.plan.fits for row in rows)
    return FITS if serves else DOES_NOT_FIT


def _parts(flag: str, text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts):
        message = f"{flag} {text[:80]!r} has an empty part; write it as in {flag} a,b."
        raise OptionError(message)
    return parts


def _whole(flag: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        message = f"{flag} {text[:40]!r} is not a whole number."
        raise OptionError(message) from None
