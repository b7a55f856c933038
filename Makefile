# SPDX-License-Identifier: GPL-3.0-or-later
# Two commands do everything on a fresh machine with CPython 3.11+, pip and venv: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: help demo test lint bench docs matrix faults collection clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "forkless needs Python 3.11 or newer; say PYTHON=/path/to/python3.11 make ..."; exit 1; }
	@echo "setting up $(VENV) with $$($(PYTHON) --version) ..."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[dev]'
	@touch $@

demo: $(VENV)/.ready  ## see it work, in under a minute
	@$(BIN)/python examples/demo.py

test: $(VENV)/.ready lint  ## run all the tests
	@$(BIN)/python tests/prepare.py
	@$(BIN)/python -m pytest -n 2 --dist loadgroup -m 'not alone'
	@$(BIN)/python -m pytest -m alone
	@$(BIN)/nox -s matrix

lint: $(VENV)/.ready
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

matrix: $(VENV)/.ready  ## every Python and ansible-core, the whole suite
	@$(BIN)/nox -s full

faults: $(VENV)/.ready  ## controllers killed at every step, 20 rounds each
	@FORKLESS_ROUNDS=20 $(BIN)/python -m pytest tests/jobs/test_start_once.py

collection: $(VENV)/.ready  ## what Ansible's own tools say about the collection
	@$(BIN)/python tests/check_collection.py

bench: $(VENV)/.ready  ## measure, as ratios to stock
	@$(BIN)/python -m bench

clean:
	rm -rf $(VENV) .nox .demo
