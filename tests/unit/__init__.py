"""One test file per module; the same tree as the package."""
