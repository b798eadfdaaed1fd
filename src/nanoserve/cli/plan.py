"""`nanoserve plan`: what fits of a model on a GPU, as text, JSON or formulas."""

from collections.abc import Sequence
from pathlib import Path

from nanoserve.capacity.engine_formats import engine_weight_format
from nanoserve.capacity.engine_profile import find_profile
from nanoserve.capacity.plan_answer import PlanAnswer, answer
from nanoserve.capacity.plan_query import DEFAULT_ENGINE, HOST_ENGINES, PlanQuery
from nanoserve.capacity.plan_table import plan_lines
from nanoserve.capacity.workload import parse_workload
from nanoserve.cli.plan_options import PlanOptions, SearchOptions
from nanoserve.cli.this_machine import machine_gpus, machine_memory
from nanoserve.errors import DoesNotFitError, OptionError, UnsupportedModelError
from nanoserve.spec.gpu_names import GpuGroup, find_gpus
from nanoserve.spec.gpu_spec import custom_gpu, gpu_table, override_gpu
from nanoserve.spec.planned_model import PlannedModel
from nanoserve.spec.quant_spec import WeightFormat
from nanoserve.spec.read_model import read_planned_model
from nanoserve.units import GIB, parse_bytes

FITS, DOES_NOT_FIT = 0, DoesNotFitError.exit_code
_HOST = "cpu"  # as --gpu names a machine without one


def run_plan(model: str, options: PlanOptions, *, as_json: bool, explain: bool) -> int:
    """Print the plan of a model and return the exit code: 0 where it serves, else 4.

    Raises:
        NanoserveError: The model, the GPU or an option is refused; `main` prints it.
    """
    plan = _drawn(model, options, Path(options.plot)) if options.plot else _planned(model, options)
    if as_json:
        _print_json(plan)
    else:
        print(*plan_lines(plan), sep="\n")
        if not plan.fits:
            _print_remedies(plan)
        if explain:
            _print_formulas(plan)
    return FITS if plan.fits else DOES_NOT_FIT


# What only some plans print is imported for them alone: together it is a tenth of a plan's time.


def _print_json(plan: PlanAnswer) -> None:
    import json

    from nanoserve.capacity.plan_json import plan_as_dict, remedies_as_list
    from nanoserve.capacity.remedies import remedies

    found = plan_as_dict(plan) | {"remedies": remedies_as_list(remedies(plan))}
    print(json.dumps(found, indent=2))


def _print_remedies(plan: PlanAnswer) -> None:
    from nanoserve.capacity.compare_table import remedy_lines
    from nanoserve.capacity.remedies import remedies

    print("", *remedy_lines(remedies(plan)), sep="\n")


def _print_formulas(plan: PlanAnswer) -> None:
    from nanoserve.capacity.plan_formulas import formula_lines

    print("", *formula_lines(plan), sep="\n")


def _planned(model: str, options: PlanOptions) -> PlanAnswer:
    return answer(query_of(model, options))


def _drawn(model: str, options: PlanOptions, path: Path) -> PlanAnswer:
    """Plan and draw; what draws is imported for it alone."""
    from nanoserve.cli.plan_plot import check_plot, write_plot

    check_plot(path)
    plan = _planned(model, options)
    write_plot(plan, path)
    return plan


def run_find(model: str, options: PlanOptions, search: SearchOptions, *, as_json: bool) -> int:
    """Print what was looked for and return the exit code: 0 where it was found, else 4.

    Raises:
        NanoserveError: The model, the GPU or an option is refused; `main` prints it.
    """
    from nanoserve.capacity.plan_search import find

    _check_search(search.find or "", options)
    users = 1 if search.users is None else search.users
    found = find(_planned(model, options), search.find or "", users)
    if as_json:
        import json

        from nanoserve.capacity.plan_json import search_as_dict

        print(json.dumps(search_as_dict(found), indent=2))
    else:
        from nanoserve.capacity.compare_table import search_lines

        print(*search_lines(found), sep="\n")
    return DOES_NOT_FIT if found.best is None else FITS


def _check_search(wanted: str, options: PlanOptions) -> None:
    """Refuse flags that a search would pass over: a picture, and what it looks for itself."""
    if options.plot is not None:
        message = "--plot draws a plan and --find prints none: plan with the flags that it finds."
        raise OptionError(message)
    own = {
        "max-len": {"--max-model-len": options.max_model_len},
        "gpus": {"--num-gpus": options.num_gpus, "--tp": options.tp},
    }.get(wanted, {})
    given = [flag for flag, value in own.items() if value is not None]
    if given:
        message = f"--find {wanted} looks for {' and '.join(own)} itself: leave out {given[0]}."
        raise OptionError(message)


def query_of(model_name: str, options: PlanOptions) -> PlanQuery:
    """Return the question that the flags ask.

    Raises:
        NanoserveError: The model, the GPU or an option is refused.
    """
    model = read_planned_model(model_name)
    group = gpus_of(options)
    is_host = group.gpu.is_host
    engine = options.engine
    if engine is None:
        engine = _host_engine(model) if is_host else DEFAULT_ENGINE
    stored = options.quantization
    return PlanQuery(
        model=model,
        gpu=group.gpu,
        num_gpus=group.num_gpus,
        engine=engine,
        weight_format=None if stored is None else asked_weight_format(stored, engine),
        kv_cache_dtype=options.kv_cache_dtype,
        tp=options.tp,
        pp=options.pp,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        utilization=options.gpu_memory_utilization,
        is_eager=options.enforce_eager,
        workload=None if options.workload is None else parse_workload(options.workload),
    )


def print_lists(*, models: bool, gpus: bool) -> None:
    """Print the models, or the GPUs, that are known by name, or both."""
    if models:
        _print_models()
    if gpus:
        _print_gpus()


def _print_models() -> None:
    from nanoserve.spec.presets import presets

    rows = [("model", "family", "also called")]
    rows += [
        (one.model, str(one.config.get("model_type", "")), ", ".join(one.names))
        for one in presets()
    ]
    print(*_left_aligned(rows), sep="\n")


def _print_gpus() -> None:
    from nanoserve.plan.text_table import table_lines

    rows = [("GPU", "GiB as CUDA reports", "GB/s", "16-bit TFLOP/s", "8-bit", "evidence")]
    for gpu in gpu_table():
        rows.append(
            (
                gpu.name,
                f"{gpu.memory_bytes / GIB:.2f}",
                _scaled(gpu.bandwidth, 1e9),
                _scaled(gpu.half_flops, 1e12),
                _scaled(gpu.fp8_flops, 1e12),
                gpu.evidence,
            )
        )
    print(*table_lines(rows), sep="\n")


def gpus_of(options: PlanOptions) -> GpuGroup:
    """Return the GPUs that are named, described, or here, else this machine's memory.

    What the flags say of each GPU is in it, and how many there are.

    Raises:
        OptionError: No such GPU, or the flags contradict each other.
    """
    num_bytes = None if options.gpu_mem is None else _bytes("--gpu-mem", options.gpu_mem)
    if options.gpu is not None:
        group = _named_gpus(options.gpu)
    elif num_bytes is not None:
        group = GpuGroup(1, custom_gpu(num_bytes))
    else:
        group = machine_gpus() or GpuGroup(1, machine_memory())
    gpu = override_gpu(group.gpu, num_bytes, options.bandwidth, options.tflops)
    return GpuGroup(_num_gpus(options, group.num_gpus), gpu)


def _named_gpus(text: str) -> GpuGroup:
    """Return the GPUs of a name, or this machine without its GPUs under the name of `_HOST`."""
    name = text.strip().casefold()
    if name == _HOST:
        return GpuGroup(1, machine_memory())
    if not name or name.split()[-1].endswith(f"x{_HOST}") or name.split()[-1] == _HOST:
        message = (
            f"--gpu {text[:40]!r}: name a GPU, as in --gpu h100 or --gpu '2x h100' (--list-gpus "
            f"has them all), or --gpu {_HOST} for this one machine's memory."
        )
        raise OptionError(message)
    return find_gpus(text)


def asked_weight_format(name: str, engine: str) -> WeightFormat | None:
    """Return the format that `--quantization` names; None for weights as they come.

    Raises:
        OptionError: There is none of that name, or the engine is not known.
    """
    try:
        return engine_weight_format(find_profile(engine).engine, name)
    except UnsupportedModelError as error:
        message = f"--quantization: {error}"
        raise OptionError(message) from None


def _num_gpus(options: PlanOptions, named: int) -> int:
    if options.num_gpus is not None:
        if named not in (1, options.num_gpus):
            message = (
                f"--gpu says {named} GPUs and --num-gpus {options.num_gpus}; give one of them."
            )
            raise OptionError(message)
        return options.num_gpus
    return named if named > 1 else max(1, (options.tp or 1) * options.pp)


def _host_engine(model: PlannedModel) -> str:
    """Return what can serve on this machine's memory: ours if it knows the model."""
    from nanoserve.spec.served_spec import served_spec  # other plans do without it

    try:
        served_spec(model)
    except UnsupportedModelError:
        return HOST_ENGINES[1]
    return HOST_ENGINES[0]


def _bytes(flag: str, text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        message = f"{flag}: {error}."
        raise OptionError(message) from None


def _scaled(value: float | None, unit: float) -> str:
    return "-" if value is None else f"{value / unit:,.0f}"


def _left_aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
