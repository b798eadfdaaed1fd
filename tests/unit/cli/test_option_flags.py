"""Flags come from the option dataclasses alone."""

import pytest
from typer.testing import CliRunner

import nanoserve
from nanoserve.cli import main as command_line
from nanoserve.cli.option_flags import option_fields, pick_options
from nanoserve.errors import OptionError
from nanoserve.options import EngineOptions, ServerOptions
from nanoserve.units import MIB


def test_every_option_is_a_flag() -> None:
    """`serve --help` names a flag for every field but the model."""
    text = CliRunner().invoke(command_line.app, ["serve", "--help"]).output

    for option_class in (EngineOptions, ServerOptions):
        for option in option_fields(option_class, skip=("model",)):
            assert f"--{option.name.replace('_', '-')}" in text


def test_flags_reach_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values given on the command line arrive in the frozen options."""
    seen: list[tuple[EngineOptions, ServerOptions]] = []

    def record(engine: EngineOptions, server: ServerOptions) -> int:
        seen.append((engine, server))
        return 0

    monkeypatch.setattr("nanoserve.cli.serve.serve_model", record)
    flags = ["--port", "0", "--kv-cache-bytes", "1.5GiB", "--no-enable-prefix-caching"]
    result = CliRunner().invoke(command_line.app, ["serve", "model-dir", *flags])

    assert result.exit_code == 0, result.output
    engine, server = seen[0]
    assert engine == EngineOptions(
        model="model-dir", kv_cache_bytes=1536 * MIB, enable_prefix_caching=False
    )
    assert server == ServerOptions(port=0)


@pytest.mark.parametrize(
    ("flags", "value"), [([], None), (["--cuda-graphs"], True), (["--no-cuda-graphs"], False)]
)
def test_a_switch_may_be_left_to_the_boot(
    flags: list[str], value: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A switch that is not given stays undecided, and each side of it has a flag."""
    seen: list[EngineOptions] = []

    def record(engine: EngineOptions, server: ServerOptions) -> int:
        seen.append(engine)
        return 0

    monkeypatch.setattr("nanoserve.cli.serve.serve_model", record)
    result = CliRunner().invoke(command_line.app, ["serve", "model-dir", *flags])

    assert result.exit_code == 0, result.output
    assert seen[0].cuda_graphs is value


def test_bad_byte_count_is_an_option_error() -> None:
    """A byte count that is none is refused by name before anything is loaded."""
    result = CliRunner().invoke(command_line.app, ["serve", "--kv-cache-bytes", "much"])

    assert isinstance(result.exception, OptionError)
    assert "--kv-cache-bytes: 'much' is not a byte count" in str(result.exception)


def test_impossible_values_are_option_errors() -> None:
    """Picking options checks them."""
    with pytest.raises(OptionError, match="--port"):
        pick_options(ServerOptions, {"port": 70000, "block_size": 16})


def test_known_errors_become_exit_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error we know is one line on stderr and its own exit code."""
    monkeypatch.setattr("sys.argv", ["nanoserve", "serve", "--block-size", "12"])
    with pytest.raises(SystemExit) as caught:
        command_line.main()

    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("nanoserve: --block-size is 12")


def test_version_flag_prints_the_version() -> None:
    """`nanoserve --version` prints the version and nothing else."""
    result = CliRunner().invoke(command_line.app, ["--version"])

    assert (result.exit_code, result.output) == (0, f"{nanoserve.__version__}\n")
