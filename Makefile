# SPDX-License-Identifier: GPL-3.0-or-later
# Two commands do everything on a fresh machine with CPython 3.11+, pip and venv: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
# A tree that may not write bytecode compiles ansible-core anew in every child: the tests would take twice as long.
unexport PYTHONDONTWRITEBYTECODE
BIN    := $(VENV)/bin
# From 3.12 on Python tells which lines run at a cost of some 8 %; before that it costs 60 %, and `make coverage` does it.
COVER   = $(shell $(BIN)/python -c "import sys; print('--cov --cov-report=' if sys.version_info >= (3, 12) else '')" 2>/dev/null)
# Five tests for two cores: most of them wait for other processes half of the time.
export TEST_WORKERS ?= $(shell $(PYTHON) -c "import os; print(min(8, 5 * (os.cpu_count() or 1) // 2))")
# Tests of the oldest and the newest ansible-core are run by their pairs, so the default pair leaves them to those, if their Pythons are here.
OTHERS  = $(shell $(BIN)/python -c "import noxfile; print('-m \"not (matrix_ends or matrix_newest)\"' if noxfile.ends_are_tested() else '')")
REPORT  = $(BIN)/coverage report --sort=-miss | sed -n '1,22p;$$p'
export COVERAGE_CORE ?= $(if $(COVER),sysmon,ctrace)
# pip trusts the system's certificates, uv its own: behind a proxy with a certificate of the house, uv would find no package.
ifneq ($(wildcard /etc/ssl/certs/ca-certificates.crt /etc/ssl/cert.pem /etc/pki/tls/certs/ca-bundle.crt),)
export UV_SYSTEM_CERTS ?= 1
endif

.PHONY: help demo test main pairs coverage prepare lint docs dist changelog bench matrix upstream upstream-fast upstream-collections upstream-tools upstream-mp upstream-runner upstream-network network soak faults collection clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "forkless needs Python 3.11 or newer; say PYTHON=/path/to/python3.11 make ..."; exit 1; }
	@echo "setting up $(VENV) with $$($(PYTHON) --version); the first time this takes a minute ..."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[dev]'
	@touch $@

demo: $(VENV)/.ready  ## see it work, in under a minute
	@$(BIN)/python examples/demo.py

test: $(VENV)/.ready  ## run all the tests
	@echo "checking style and types, and preparing what the tests need ..."
	@$(MAKE) --no-print-directory -j2 lint prepare
	@echo "testing, $(TEST_WORKERS) at a time, and the other Pythons and ansible-cores beside them ..."
	@mkdir -p .cache/coverage
	@rm -f .cache/passed-alone
	@$(MAKE) --no-print-directory -j2 --keep-going main pairs; code=$$?; cat .cache/pairs.log; exit $$code
	@! test -e .cache/passed-alone || cat .cache/passed-alone

main: $(VENV)/.ready
	@$(BIN)/python tests/run_tests.py --workers $(TEST_WORKERS) $(OTHERS) --durations=25 --durations-min=3 $(COVER)
	@$(if $(COVER),echo "lines that the tests reached; the files with most that they did not:" && $(REPORT),echo "coverage: from Python 3.12 on, or with make coverage")

# At the same time as the tests of the default pair: both wait, for downloads and for their last tests, while the other computes. With two
# fifths as many tests at a time: together they take two fifths of the default pair's processor time, so both end at about the same time. The
# output is shown after its own.
pairs: $(VENV)/.ready
	@TEST_WORKERS=$$((($(TEST_WORKERS) * 2 + 4) / 5)) $(BIN)/nox -s matrix > .cache/pairs.log 2>&1

coverage: $(VENV)/.ready  ## which lines the tests reach, on any Python (slower on 3.11)
	@$(BIN)/python tests/prepare.py
	@mkdir -p .cache/coverage
	@$(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist loadgroup --cov --cov-report=
	@$(REPORT)

prepare: $(VENV)/.ready
	@$(BIN)/python tests/prepare.py

lint: $(VENV)/.ready
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy --no-error-summary

dist: $(VENV)/.ready  ## build the wheel and the sdist into dist/
	@rm -rf dist
	@$(BIN)/uv build --quiet
	@ls dist

changelog: $(VENV)/.ready  ## collect changelog.d into CHANGELOG.md, for a release
	@$(BIN)/towncrier build --yes

docs: $(VENV)/.ready  ## build the pages into .cache/site; warnings and dead links are errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "built: .cache/site/index.html"

matrix: $(VENV)/.ready  ## everything on every Python and ansible-core (long)
	@$(BIN)/nox -s full

upstream: $(VENV)/.ready  ## ansible-core's own integration targets: all that pass on stock (hours)
	@$(BIN)/python tests/upstream/core_targets.py full

upstream-fast: $(VENV)/.ready  ## the quick ones of them (minutes)
	@$(BIN)/python tests/upstream/core_targets.py fast

upstream-collections: $(VENV)/.ready  ## integration targets of collections, on stock and on forkless (as root, half an hour)
	@$(BIN)/python tests/upstream/collection_targets.py $(COLLECTIONS) $(if $(TARGETS),--targets $(TARGETS))

upstream-tools: $(VENV)/.ready  ## Molecule, ansible-navigator, ansible-runner and others, with stock's command and with the shim (half an hour)
	@$(BIN)/python tests/upstream/tools.py $(TOOLS)

upstream-mp: $(VENV)/.ready  ## CPython's own multiprocessing suite, on every Python and start method (an hour)
	@$(BIN)/python tests/upstream/cpython_suite.py

upstream-runner: $(VENV)/.ready  ## ansible-runner's and pexpect's own suites, with the stock spawn and with ours
	@$(BIN)/python tests/upstream/runner_suites.py

upstream-network: $(VENV)/.ready  ## unit tests of collections for devices, by stock and by forkless: SUITES="cisco.ios=REPOSITORY@TAG ..."
	@$(BIN)/python tests/upstream/network_suites.py $(SUITES)

soak: $(VENV)/.ready  ## thousands of spawns, hundreds of runs, under a load built to hang the stock spawn; 230 runs cancelled at random moments; 200 network devices, 20 times
	@$(BIN)/python tests/soak_spawn.py
	@$(BIN)/python tests/soak_runs.py
	@$(BIN)/python tests/soak_asyncio.py
	@$(BIN)/python tests/soak_cancel.py
	@$(BIN)/python tests/prepare.py
	@$(BIN)/python tests/soak_devices.py --devices 200 --runs 20

network: $(VENV)/.ready  ## one playbook on devices by stock and by forkless, at length and at each verbosity; all that is printed is compared; FRR (as root, with Debian's frr); PyPI's NETCONF server
	@$(BIN)/python tests/prepare.py
	@FORKLESS_NETWORK=1 $(BIN)/python -m pytest -q -n 2 tests/engines/threads/network

faults: $(VENV)/.ready  ## controllers killed at every step and event, 20 rounds each; full disks, 500 jobs, all scenarios over ssh; the queue, on both PostgreSQLs (as root, with pgbouncer, libfaketime and Debian's postgresql)
	@FORKLESS_ROUNDS=20 $(BIN)/python -m pytest tests/jobs tests/cli/test_jobs_command.py tests/cli/test_jobs_operator.py
	@FORKLESS_ROUNDS=20 $(BIN)/python -m pytest tests/queue
	@FORKLESS_ROUNDS=20 $(BIN)/python -m pytest tests/web/test_page_disk.py
	@FORKLESS_ROUNDS=20 FORKLESS_TEST_POSTGRESQL=debian $(BIN)/python -m pytest tests/queue

collection: $(VENV)/.ready  ## what Ansible's own tools say about the collection
	@$(BIN)/python tests/check_collection.py

bench: $(VENV)/.ready  ## measure, as ratios to stock
	@$(BIN)/python -m bench

clean:
	rm -rf $(VENV) .nox .cache .demo
