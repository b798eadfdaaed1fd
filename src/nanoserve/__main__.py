"""`python -m nanoserve`: the command, where its script is not on the path."""

from nanoserve.cli.main import main

if __name__ == "__main__":
    main()
