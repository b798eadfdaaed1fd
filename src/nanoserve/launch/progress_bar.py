"""A progress bar on stderr for work that is counted; nothing where that is no terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def progress_bar(name: str, total: int, show: bool = True) -> Iterator[Callable[[], None]]:
    """Yield a function that moves the bar on by one.

    Args:
        name: Stands before the bar.
        total: Where the bar ends.
        show: False shows nothing on a terminal either.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not (show and console.is_terminal)) as bar:
        task = bar.add_task(name, total=total)
        yield lambda: bar.advance(task)
