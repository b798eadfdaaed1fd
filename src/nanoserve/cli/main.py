"""`nanoserve`: the command line. Sub-commands import what they need when they are called."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from nanoserve import __version__
from nanoserve.cli.option_flags import accepts_options, pick_options
from nanoserve.errors import NanoserveError
from nanoserve.options import DEFAULT_MODEL, EngineOptions, ServerOptions

app = typer.Typer(
    name="nanoserve",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help never cuts a flag's name
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
@accepts_options(EngineOptions, ServerOptions, skip=("model",))
def serve(
    model: Annotated[
        str,
        typer.Argument(help="Preset name, local folder, .gguf file, or Hugging Face hub id."),
    ] = DEFAULT_MODEL,
    **values: object,
) -> None:
    """Serve MODEL over the OpenAI API."""
    from nanoserve.cli.serve import serve_model

    engine_options = pick_options(EngineOptions, {"model": model, **values})
    raise typer.Exit(serve_model(engine_options, pick_options(ServerOptions, values)))


@app.command()
def chat(
    url: Annotated[str, typer.Option(help="Where the server listens.")] = "http://127.0.0.1:8000",
    system: Annotated[str, typer.Option(help="System message to begin with.")] = "",
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 0.7,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of one answer.")] = 512,
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


bench = typer.Typer(help="Measure a running server.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(bench, name="bench")


@bench.command("serve")
def bench_serve(
    url: Annotated[str, typer.Option(help="Where the server listens.")] = "http://127.0.0.1:8000",
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 8,
    num_requests: Annotated[int, typer.Option(min=1, help="Requests in all.")] = 16,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 128,
    output_tokens: Annotated[int, typer.Option(min=2, help="Tokens of each answer.")] = 128,
) -> None:
    """Load the server with random prompts and print its rates."""
    from nanoserve.bench.servebench import Workload, run_workload

    workload = Workload(concurrency, num_requests, prompt_tokens, output_tokens)
    print(run_workload(url, workload).describe())


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
    try:
        app()
    except NanoserveError as error:
        print(f"nanoserve: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
