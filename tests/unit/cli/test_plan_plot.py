"""`plan --plot`: files that open, with the plan's words in them."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from nanoserve.capacity.plan_answer import PlanAnswer, answer
from nanoserve.capacity.plan_query import PlanQuery
from nanoserve.cli.plan_plot import check_plot, write_plot
from nanoserve.errors import OptionError
from nanoserve.spec.gpu_names import find_gpu
from nanoserve.spec.read_model import read_planned_model
from nanoserve.units import GIB


def planned(model: str) -> PlanAnswer:
    return answer(PlanQuery(model=read_planned_model(model), gpu=find_gpu("h100")))


@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.1-70b", "qwen3-next-80b"])
def test_a_picture_is_written(tmp_path: Path, model: str) -> None:
    """Plans that serve and plans that do not load are drawn alike."""
    write_plot(planned(model), tmp_path / "plan.png")

    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_a_drawing_says_what_the_parts_are(tmp_path: Path) -> None:
    """An SVG has its words as text, and is the same file each time."""
    plan = planned("llama-3.1-8b")
    write_plot(plan, tmp_path / "one.svg")
    write_plot(plan, tmp_path / "two.svg")

    drawing = (tmp_path / "one.svg").read_text()
    words = " ".join(ET.fromstring(drawing).itertext())
    pool = plan.pool
    assert "weights: 14.96" in words
    assert f"KV pool: {pool.mid / GIB:.2f} ({pool.low / GIB:.2f} to {pool.high / GIB:.2f})" in words
    assert drawing == (tmp_path / "two.svg").read_text()


def test_a_page_has_everything_in_it(tmp_path: Path) -> None:
    """The picture, the plan and its formulas; nothing is fetched from elsewhere."""
    write_plot(planned("llama-3.1-8b"), tmp_path / "plan.html")

    page = (tmp_path / "plan.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "<svg" in page
    assert "= KV pool" in page
    assert "floor(utilization * total)" in page
    assert not any(mark in page for mark in ("<script", "<link", "<img", "src="))


@pytest.mark.parametrize("name", ["plan.gif", "plan", ".png/"])
def test_names_that_say_no_format_are_refused(name: str) -> None:
    """Before anything is planned."""
    with pytest.raises(OptionError, match="write a name that ends with"):
        check_plot(Path(name))


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """A folder that is not there."""
    with pytest.raises(OptionError, match="cannot be written"):
        write_plot(planned("llama-3.1-8b"), tmp_path / "none" / "plan.svg")


def test_a_part_has_one_colour_in_every_engines_picture(tmp_path: Path) -> None:
    """SGLang keeps back last what vLLM keeps back first: pictures side by side agree."""
    drawings = []
    for engine in ("vllm", "sglang"):
        query = PlanQuery(
            model=read_planned_model("llama-3.1-8b"), gpu=find_gpu("h100"), engine=engine
        )
        write_plot(answer(query), tmp_path / "plan.svg")
        drawings.append((tmp_path / "plan.svg").read_text())

    activations = "#cc79a7"
    assert activations in drawings[0]
    assert activations not in drawings[1]


def test_a_machine_is_no_gpu(tmp_path: Path) -> None:
    """A plan of the host's memory says whose it is; what fits is not said to run."""
    host = replace(find_gpu("rtx 4090"), compute_capability="host")
    query = PlanQuery(model=read_planned_model("qwen3-0.6b"), gpu=host, engine="nanoserve")
    write_plot(answer(query), tmp_path / "plan.svg")

    words = " ".join(ET.fromstring((tmp_path / "plan.svg").read_text()).itertext())
    assert "memory of this machine" in words
    assert "requests that fit at once" in words
    assert "slots: no more run" in words
