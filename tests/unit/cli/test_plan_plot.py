"""`plan --plot`: files that open, with the plan's words in them."""

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
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


def page_of(plan: PlanAnswer, folder: Path) -> str:
    write_plot(plan, folder / "plan.html")
    return (folder / "plan.html").read_text()


def test_a_page_says_what_would_serve(tmp_path: Path) -> None:
    """As the terminal does: a plan that does not load comes with what would."""
    page = page_of(too_large(), tmp_path)

    assert "<h2>What would serve, each planned again</h2>" in page
    assert "--num-gpus 8 --tp 8" in page
    assert "What would serve" not in page_of(planned("llama-3.1-8b"), tmp_path)


def test_the_parts_of_a_page_have_their_own_names(tmp_path: Path) -> None:
    """Two drawings in one page: no id twice, every reference to one of them, both described."""
    page = page_of(planned("llama-3.1-8b"), tmp_path)
    names = re.findall(r'\bid="([^"]+)"', page)
    references = re.findall(r'(?:url\(|href=")#([^")]+)', page)

    assert len(names) == len(set(names))
    assert references
    assert set(references) <= set(names)
    assert page.count('role="img" aria-label="') == 2


def test_the_recommended_slots_are_drawn(tmp_path: Path) -> None:
    """The line that the launch command follows, and the engine's own limit."""
    plan = planned("llama-3.1-8b")
    write_plot(plan, tmp_path / "plan.svg")

    words = " ".join(ET.fromstring((tmp_path / "plan.svg").read_text()).itertext())
    assert f"{plan.fit.max_num_seqs:,} slots recommended" in words
    assert f"{plan.choices.max_num_seqs:,} slots: no more run" in words


def too_large() -> PlanAnswer:
    """A plan with the longest title: what is missing, and of which GPU."""
    model = read_planned_model("llama-3.3-70b")
    return answer(PlanQuery(model=model, gpu=find_gpu("rtx 4090")))


BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
MEASURE = """<script>
const outside = [...document.querySelectorAll("svg text")].filter((text) => {
  const words = text.getBoundingClientRect();
  const drawing = text.closest("svg").getBoundingClientRect();
  return words.left < drawing.left - 1 || words.right > drawing.right + 1
    || words.top < drawing.top - 1 || words.bottom > drawing.bottom + 1;
}).map((text) => text.textContent);
const small = [...document.querySelectorAll("svg text")]
  .filter((text) => text.getBoundingClientRect().height < 6).map((text) => text.textContent);
const wide = document.documentElement.scrollWidth > window.innerWidth;
document.body.innerHTML = `<p>measured ${JSON.stringify({outside, small, wide})}</p>`;
</script>"""


@pytest.mark.skipif(BROWSER is None, reason="no browser is installed")
@pytest.mark.parametrize("width", [400, 1200])
@pytest.mark.parametrize("make", [lambda: planned("llama-3.1-8b"), too_large])
def test_a_browser_shows_every_word_whole(
    tmp_path: Path, make: Callable[[], PlanAnswer], width: int
) -> None:
    """On a phone and on a desk: nothing is cut off, too small, or makes the page scroll aside."""
    page = page_of(make(), tmp_path).replace("</body>", f"{MEASURE}</body>")
    (tmp_path / "measured.html").write_text(page)
    command = [BROWSER or "", "--headless", "--no-sandbox", "--disable-gpu"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},1200"]
    command += ["--dump-dom", (tmp_path / "measured.html").as_uri()]

    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = re.search(r"measured (\{.*?\})</p>", run.stdout)
    assert found is not None, run.stderr[-2000:]
    assert json.loads(found[1]) == {"outside": [], "small": [], "wide": False}
