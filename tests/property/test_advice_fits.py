"""Whatever a refused boot advises can be typed, and makes a plan."""

import shlex
from dataclasses import fields, replace
from typing import Any

from hypothesis import event, given, settings

from nanoserve.errors import CaptureTooSmall, DoesNotFitError
from nanoserve.options import EngineOptions, flag_name
from nanoserve.plan.boot_plan import plan_boot
from nanoserve.plan.device_facts import DeviceFacts
from nanoserve.spec.model_spec import ModelSpec
from nanoserve.units import parse_bytes
from tests.strategies import boot_options, devices, model_specs

FIELDS = {flag_name(field.name): field for field in fields(EngineOptions)}


@settings(max_examples=250, deadline=None)
@given(spec=model_specs(), options=boot_options(), device=devices())
def test_every_advice_makes_a_plan(
    spec: ModelSpec, options: EngineOptions, device: DeviceFacts
) -> None:
    """Each piece of advice is flags that are enough by themselves."""
    advice: tuple[str, ...] = ()
    try:
        plan = plan_boot(spec, options, device)
    except (DoesNotFitError, CaptureTooSmall) as error:
        advice = error.advice
    else:
        assert plan.planned_bytes <= device.free_bytes
    event(f"{len(advice)} pieces of advice")
    for flags in advice:
        plan = plan_boot(spec, replace(options, **parsed(flags)), device)
        assert plan.planned_bytes <= device.free_bytes


def parsed(flags: str) -> dict[str, Any]:
    """Read flags as the command line does."""
    words = iter(shlex.split(flags))
    changes: dict[str, Any] = {}
    for flag in words:
        if flag.startswith("--no-"):
            changes[FIELDS[f"--{flag[5:]}"].name] = False
            continue
        name = FIELDS[flag].name
        value = next(words)
        if name.endswith("_bytes"):
            changes[name] = parse_bytes(value)
        else:
            changes[name] = int(value) if value.isdigit() else value
    return changes
