# The front door. Every target sets up what it needs in .venv (never as root, never outside the repository).
#   make demo ARGS="--vehicles 500 --epsilon 0.5"      options of a target go into ARGS
.DEFAULT_GOAL := help
.PHONY: help setup demo test campaign test-quick mutants mutants-quick check bench bench-quick reproduce clean

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
# Compiled code of the batch verifier stays in the repository too.
export NUMBA_CACHE_DIR ?= $(CURDIR)/.venv/cache

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile
	@echo '  Options go into ARGS, for example: make demo ARGS="--vehicles 500 --epsilon 0.5"'

setup: ## prepare .venv in the repository, and nothing else
	@$(PYTHON) scripts/bootstrap.py all

demo: setup ## count 2,000 vehicles on the Bologna map with two aggregators; writes out/
	@$(BIN)/fleetcount demo $(ARGS)

test: ## every test, then a dozen planted bugs; says what could not run here
	@$(PYTHON) scripts/bootstrap.py test
	@scripts/test $(ARGS)
	@$(if $(ARGS),,scripts/mutants --quick)

campaign: ## the tests that take minutes each: coverage, a week of records, a hundred real windows
	@$(PYTHON) scripts/bootstrap.py test
	@FLEETCOUNT_CAMPAIGN=1 scripts/test tests/statistical/test_answer_coverage.py tests/integration/test_series_month.py tests/integration/test_network_series.py tests/cli/test_demo.py tests/cli/test_simulate.py

test-quick: ## the tests that take less than ten seconds each
	@$(PYTHON) scripts/bootstrap.py test
	@scripts/test -m "not slow" $(ARGS)

mutants: ## plant every known bug and see its tests fail, under half an hour; ARGS="--package client"
	@$(PYTHON) scripts/bootstrap.py test
	@scripts/mutants $(ARGS)

mutants-quick: ## a dozen of them, as after the tests of `make test`
	@$(PYTHON) scripts/bootstrap.py test
	@scripts/mutants --quick $(ARGS)

check: ## ruff, mypy, pyright, import-linter, names in documents, generated code
	@$(PYTHON) scripts/bootstrap.py check
	@scripts/check

bench: ## every figure beside its peer or limit, in one table and out/bench.json; ARGS="store" for some
	@$(PYTHON) scripts/bootstrap.py test
	@$(BIN)/python scripts/bench.py $(ARGS)

bench-quick: ## the same with smaller sizes, under two minutes; out/bench-quick.json
	@$(PYTHON) scripts/bootstrap.py test
	@$(BIN)/python scripts/bench.py --quick $(ARGS)

reproduce: setup ## the papers' experiments: figures, tables and claims.json in out/reproduce
	@$(BIN)/fleetcount reproduce all --output out/reproduce $(ARGS)

clean: ## remove .venv, out and caches
	rm -rf .venv out .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
