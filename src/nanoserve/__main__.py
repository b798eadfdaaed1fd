"""The command `nanoserve`, also `python -m nanoserve`: quiet where it is interrupted as it loads."""

import signal


def main() -> None:
    """Load the command line and run it.

    Until it is loaded Ctrl-C has the system's effect, which is silent: there is nothing to
    clean up yet, and Python would print where it was.
    """
    is_python_s = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_python_s:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from nanoserve.cli import main as command_line

    if is_python_s:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command_line.main()


if __name__ == "__main__":
    main()
