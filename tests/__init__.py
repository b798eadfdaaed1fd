"""The test suite; mirrors the package."""
