# Works on a fresh Debian or Ubuntu with make, git and python3. `make help` lists the commands.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := scripts/install $(BIN)/python
export PYTHON
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(PIP_CONSTRAINT)
# Modules are compiled once, not by each of the hundreds of processes that the tests start (3.5 s of a
# processor instead of 1.1 for a service with its libraries).
unexport PYTHONDONTWRITEBYTECODE

# Tests run in so many processes, each with database servers of its own: twice as many as the two processors of CI, since
# a test waits nearly as long as it computes, those that kill and stop things longer.
WORKERS ?= 4

.PHONY: help demo test test-fast check format fuzz bench docs clean
.DEFAULT_GOAL := help

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

demo: $(VENV)/.installed-demo ## a data service with demo data, asked in every way (no database needed)
	$(BIN)/python -m examples.demo

test: $(VENV)/.installed-test ## every check, then every test, on real PostgreSQL and MariaDB, and MySQL where it can be had; THOROUGH=1 searches for longer
	scripts/mysql-server var/mysql & scripts/check $(BIN) && { wait $$! || [ $$? = 3 ]; }
	scripts/in-memory $(BIN)/python -m pytest -q -n $(WORKERS) --durations=30 --maxfail=25

test-fast: $(VENV)/.installed-test ## the tests that need no server
	scripts/in-memory $(BIN)/python -m pytest -q -n $(WORKERS) -m "not server" --ignore=tests/faults -p no:schemathesis

check: $(VENV)/.installed-test ## format, lint, types, import contracts, structure, generated files
	scripts/check $(BIN)

format: $(VENV)/.installed-test ## put the source in order
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

fuzz: $(VENV)/.installed-test ## generated queries against one DuckDB, until Ctrl-C or for SECONDS=…; RUNTIME=service or ray, OVERTAKING=1
	$(BIN)/python -m tests.dqp.generated fuzz $(if $(SECONDS),--seconds $(SECONDS)) $(if $(RUNTIME),--runtime $(RUNTIME)) $(if $(OVERTAKING),--overtaking)

bench: $(VENV)/.installed-bench ## tables and plots of perf/, on real databases
	$(BIN)/python -m perf

docs: $(VENV)/.installed-docs ## the documentation as a site in build/docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "open build/docs/index.html"

clean: ## remove what was built and installed here
	rm -rf $(VENV) var/mysql build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find dai dqp tests perf -name __pycache__ -type d -prune -exec rm -rf {} +

# An installation is done once, and again when what it installs has changed.
$(VENV)/.installed-demo: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e .
	@touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt perf/peers/requirements.txt scripts/system-packages
	scripts/system-packages test
	$(MAKE) -s $(BIN)/python
	$(INSTALL) -e '.[test,check]'
	perf/peers/install duckdb-extension-tpcds || echo 'Without it the tests of TPC-DS are skipped.' >&2
	@touch $@

$(VENV)/.installed-docs: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[docs]'
	@touch $@

$(VENV)/.installed-bench: pyproject.toml constraints.txt perf/peers/install perf/peers/requirements.txt $(VENV)/.installed-test
	$(INSTALL) -e '.[test,perf]'
	perf/peers/install
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or later is needed; name one with: make PYTHON=python3.12" >&2; exit 1; }
	scripts/system-packages venv
	$(PYTHON) -m venv $(VENV)
