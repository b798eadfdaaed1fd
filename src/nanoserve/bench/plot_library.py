"""matplotlib, which the extra `plot` installs: whether it is there."""

from nanoserve.errors import OptionError


def check_can_plot() -> None:
    """Refuse before the load rather than after it.

    Raises:
        OptionError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        message = "--plot needs matplotlib. Install it: pip install 'nanoserve[plot]'"
        raise OptionError(message) from None
