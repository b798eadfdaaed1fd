"""`nanoserve`: the command line. Sub-commands import what they need when they are called."""

import gc
from pathlib import Path
from typing import Annotated

import typer

from nanoserve import __version__
from nanoserve.bench.boot_bench_options import BootBenchOptions
from nanoserve.bench.serve_bench_options import ServeBenchOptions
from nanoserve.cli.command_run import run_command
from nanoserve.cli.compare_options import VARIED, CompareOptions
from nanoserve.cli.option_flags import accepts_options, number_option, pick_options
from nanoserve.cli.plan_options import PlanOptions, SearchOptions
from nanoserve.errors import OptionError
from nanoserve.options import DEFAULT_MODEL, EngineOptions, ServerOptions

ModelArgument = Annotated[
    str, typer.Argument(help="Preset name, local folder, .gguf file, or Hugging Face hub id.")
]
_PLANNED_MODEL = typer.Argument(help="Preset name, local folder, config.json, or .gguf file.")

# What `bench trace` sets itself: the keys of `bench.tracebench.FIXED_OPTIONS`, which only an
# import of torch could tell.
FIXED_IN_TRACE = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "enable_prefix_caching",
)

app = typer.Typer(
    name="nanoserve",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help never cuts a flag's name
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
@accepts_options(EngineOptions, ServerOptions, skip=("model",))
def serve(model: ModelArgument = DEFAULT_MODEL, **values: object) -> None:
    """Serve MODEL over the OpenAI API."""
    from nanoserve.cli.serve import serve_model

    engine_options = pick_options(EngineOptions, {"model": model, **values})
    raise typer.Exit(serve_model(engine_options, pick_options(ServerOptions, values)))


@app.command()
def chat(
    url: Annotated[str, typer.Option(help="Where the server listens.")] = "http://127.0.0.1:8000",
    system: Annotated[str, typer.Option(help="System message to begin with.")] = "",
    temperature: Annotated[
        float, number_option("--temperature", float, "0 always takes the likeliest token.")
    ] = 0.7,
    max_tokens: Annotated[
        int, number_option("--max-tokens", int, "Most tokens of one answer.")
    ] = 512,
) -> None:
    """Talk to a running server; an empty line or Ctrl-D ends."""
    from nanoserve.cli.chat import ChatSession, run_chat

    raise typer.Exit(run_chat(ChatSession(url, system, temperature, max_tokens)))


@app.command()
@accepts_options(EngineOptions)
def batch(
    input_path: Annotated[
        Path, typer.Argument(metavar="IN.jsonl", help="Requests in OpenAI's batch format.")
    ],
    output_path: Annotated[
        Path, typer.Argument(metavar="OUT.jsonl", help="Answers; those it has are kept.")
    ],
    served_model_name: Annotated[
        str | None, typer.Option(help="What the requests call the model; its own name if empty.")
    ] = None,
    **values: object,
) -> None:
    """Answer a file of requests without a server; run it again to go on."""
    from nanoserve.cli.batch import run_batch

    options = pick_options(EngineOptions, values)
    raise typer.Exit(run_batch(input_path, output_path, options, served_model_name))


@app.command()
def explain(
    log: Annotated[
        str | None, typer.Argument(metavar="LOG", help="Start-up log of any engine; - is stdin.")
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="FILE|URL", help="A /metrics page instead; a URL on loopback only."),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="The card, where the log does not say its memory.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Plan this model for what the log lacks; as for `plan`.")
    ] = None,
    over_seconds: Annotated[
        float,
        number_option("--over-seconds", float, "Look at a URL twice, so far apart.", (0, 3600)),
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what became of a boot, where its memory went, and what to change."""
    from nanoserve.cli.explain import ExplainSource, run_explain

    source = ExplainSource(log, metrics, gpu, model, over_seconds)
    raise typer.Exit(run_explain(source, as_json))


@app.command()
@accepts_options(PlanOptions, SearchOptions)
def plan(
    model: Annotated[str | None, _PLANNED_MODEL] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print every formula with its numbers.")
    ] = False,
    list_models: Annotated[
        bool, typer.Option("--list-models", help="Print the models known by name.")
    ] = False,
    list_gpus: Annotated[
        bool, typer.Option("--list-gpus", help="Print the GPUs known by name.")
    ] = False,
    **values: object,
) -> None:
    """Say what fits of MODEL on a GPU, before renting it; exit code 0 if it serves, else 4."""
    gc.disable()  # what a plan imports stays: looking through it costs a tenth of the answer
    from nanoserve.cli import plan as command

    if list_models or list_gpus:
        command.print_lists(models=list_models, gpus=list_gpus)
        return
    if model is None:
        message = "Give a model to plan, or list those known by name with --list-models."
        raise OptionError(message)
    options = pick_options(PlanOptions, values)
    search = pick_options(SearchOptions, values)
    if search.find is None and search.users is not None:
        message = "--users says how many --find looks for: give --find as well."
        raise OptionError(message)
    if search.find is not None and explain:
        message = "--explain has the formulas of a plan: give it with the flags that --find finds."
        raise OptionError(message)
    if search.find is not None:
        raise typer.Exit(command.run_find(model, options, search, as_json=as_json))
    raise typer.Exit(command.run_plan(model, options, as_json=as_json, explain=explain))


@app.command()
@accepts_options(PlanOptions, skip=(*VARIED, "plot"))
@accepts_options(CompareOptions)
def compare(
    model: Annotated[str, _PLANNED_MODEL],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    **values: object,
) -> None:
    """Plan MODEL in many ways side by side; exit code 0 if any serves, else 4."""
    from nanoserve.cli.compare import run_compare

    common = {name: value for name, value in values.items() if name not in VARIED}
    varied, options = pick_options(CompareOptions, values), pick_options(PlanOptions, common)
    raise typer.Exit(run_compare(model, varied, options, as_json=as_json))


bench = typer.Typer(
    help="Measure a running server, a boot, or what the scheduler does.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(bench, name="bench")


@bench.command("serve")
@accepts_options(ServeBenchOptions)
def bench_serve(**values: object) -> None:
    """Load a server of the OpenAI API, this or another, and print its rates."""
    from nanoserve.cli.bench_serve import run_bench_serve

    raise typer.Exit(run_bench_serve(pick_options(ServeBenchOptions, values)))


@bench.command("trace")
@accepts_options(EngineOptions, skip=("model", *FIXED_IN_TRACE))
def bench_trace(
    model: ModelArgument = DEFAULT_MODEL,
    all_steps: Annotated[
        bool, typer.Option("--all-steps", help="Print one line for each step.")
    ] = False,
    **values: object,
) -> None:
    """Answer ten requests of different lengths and print what the scheduler did."""
    from nanoserve.bench.tracebench import run_trace

    print(run_trace(model, values).describe(all_steps=all_steps))


@bench.command("boot")
@accepts_options(BootBenchOptions)
def bench_boot(
    model: ModelArgument = DEFAULT_MODEL,
    **values: object,
) -> None:
    """Print which decode shapes are captured and what that costs; --repeat boots MODEL too."""
    from nanoserve.bench.bootbench import capture_lines, plan_cases, write_csv
    from nanoserve.cli.capture_device import capture_device

    options = pick_options(BootBenchOptions, values)
    device = capture_device(options.device)
    cases = plan_cases(model, options, device)
    print(*capture_lines(cases, device), sep="\n")
    if options.csv is not None:
        write_csv(options.csv, cases)
    if options.repeat:
        from nanoserve.bench.boot_repeat import measure_boots, stage_lines

        reports = measure_boots(model, options)
        print(f"\nBoots of {model}: {options.repeat}", *stage_lines(reports), sep="\n")


@bench.command("boots")
def bench_boots(
    records: Annotated[
        Path, typer.Argument(metavar="FILE", help="Recorded boots, one JSON object a line.")
    ],
    configs: Annotated[
        Path | None,
        typer.Option(help="Objects with a model and its config, one a line; packaged if empty."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print how far predictions are from boots that other engines logged."""
    from nanoserve.cli.boots import print_boots

    print_boots(records, configs, as_json=as_json)


kernels = typer.Typer(
    help="Native operators for the CPU, built on this machine.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(kernels, name="kernels")


@kernels.command("build")
def kernels_build() -> None:
    """Build them, unless they are built; serving does so too."""
    from nanoserve.cli.kernels import print_build

    print_build()


@kernels.command("info")
def kernels_info() -> None:
    """Print the compiler, its flags and what is built."""
    from nanoserve.cli.kernels import print_info

    print_info()


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def describe(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """An LLM inference server you can read."""


def main() -> None:
    """Run the command line; an error we know is one message and its exit code."""
    run_command(app)
