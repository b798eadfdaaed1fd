"""`nanoserve plan --plot`: a plan as a picture, or as one HTML file with nothing outside it.

Owns the file and the page around the drawings; `plan_drawing` draws.
"""

import html
import re
from pathlib import Path

from nanoserve.bench.plot_library import check_can_plot
from nanoserve.capacity.plan_answer import PlanAnswer
from nanoserve.capacity.plan_formulas import formula_lines
from nanoserve.capacity.plan_table import headline, plan_lines
from nanoserve.cli.plan_drawing import draw_panels, draw_plan
from nanoserve.error_reasons import reason_of
from nanoserve.errors import OptionError

FORMATS = (".png", ".svg", ".html")
_NAMES = re.compile(r'((?:\bid="|url\(#|href="#))')  # of an SVG's parts, unique in a page

# A dark page turns the drawings' lightness round and keeps their hues.
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
:root {{ --ink: #1a1a1a; --paper: #ffffff; --sheet: #f4f4f4; --good: #00694b; --bad: #a8320a; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e6e6e6; --paper: #121212; --sheet: #1e1e1e; --good: #4fd6ac; --bad: #ff9b73; }}
  svg {{ filter: invert(1) hue-rotate(180deg); }}
}}
body {{ font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 70rem; margin: 1.5rem auto; padding: 0 1rem; }}
h1 {{ font-size: clamp(1.15rem, 4.5vw, 1.7rem); line-height: 1.25; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.15rem; }}
.good {{ color: var(--good); }}
.bad {{ color: var(--bad); }}
.drawings {{ display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); }}
svg {{ width: 100%; height: auto; }}
pre {{ font: 13px/1.45 ui-monospace, monospace; background: var(--sheet); padding: 1rem;
  overflow-x: auto; border-radius: 4px; }}
@media (max-width: 40rem) {{ pre {{ font-size: 11px; padding: 0.6rem; }} }}
@media print {{ svg {{ filter: none; }} pre {{ white-space: pre-wrap; }} }}
</style>
</head>
<body>
<h1>{title}</h1>
<p><strong class="{mood}">{verdict}</strong>: {reason}.</p>
<div class="drawings">
{drawings}
</div>
<h2>The plan</h2>
<pre>{plan}</pre>
{remedies}<h2>Every formula, with its numbers</h2>
<pre>{formulas}</pre>
</body>
</html>
"""
_REMEDIES = "<h2>What would serve, each planned again</h2>\n<pre>{}</pre>\n"


def check_plot(path: Path) -> None:
    """Refuse what cannot be drawn, before anything is planned.

    Raises:
        OptionError: The name has no known ending, or matplotlib is not installed.
    """
    if path.suffix.lower() not in FORMATS:
        message = f"--plot {path}: write a name that ends with {', '.join(FORMATS)}."
        raise OptionError(message)
    check_can_plot()


def write_plot(plan: PlanAnswer, path: Path) -> None:
    """Draw a plan into a file; see `check_plot`.

    Raises:
        OptionError: The file cannot be written.
    """
    suffix = path.suffix.lower()[1:]
    picture = _page(plan).encode() if suffix == "html" else draw_plan(plan, suffix)
    try:
        path.write_bytes(picture)
    except OSError as error:
        message = f"--plot {path} cannot be written: {reason_of(error)}. Give a file in a folder."
        raise OptionError(message) from None


def _page(plan: PlanAnswer) -> str:
    stack, fits = draw_panels(plan)
    drawings = (
        _labelled(stack, "stack", "The GPU's memory, part by part, in GiB"),
        _labelled(fits, "fits", "Requests that fit at once, by their length in tokens"),
    )
    return _PAGE.format(
        title=html.escape(headline(plan)),
        mood="good" if plan.fits else "bad",
        verdict=html.escape(plan.verdict),
        reason=html.escape(plan.reason),
        drawings="\n".join(drawings),
        plan=html.escape("\n".join(plan_lines(plan))),
        remedies=_remedies(plan),
        formulas=html.escape("\n".join(formula_lines(plan))),
    )


def _labelled(svg: str, name: str, words: str) -> str:
    """Return a drawing that says what it is to those who cannot see it, its ids its own."""
    own = _NAMES.sub(rf"\g<1>{name}-", svg)
    return own.replace("<svg ", f'<svg role="img" aria-label="{html.escape(words)}" ', 1)


def _remedies(plan: PlanAnswer) -> str:
    """Return what would serve, of a plan that does not; looked for only then."""
    if plan.fits:
        return ""
    from nanoserve.capacity.compare_table import remedy_lines
    from nanoserve.capacity.remedies import remedies

    lines = remedy_lines(remedies(plan))
    return _REMEDIES.format(html.escape("\n".join(lines[1:] or lines)))
