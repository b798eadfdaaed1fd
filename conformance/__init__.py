"""Public test suites and clients, run against a server of this checkout: `make conformance`."""
