# The front door. Every target sets up what it needs in .venv (never as root, never outside the repository).
#   make demo ARGS="--vehicles 500 --epsilon 0.5"      options of a target go into ARGS
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-quick nightly mutants mutants-quick attack attack-load fuzz check docs bench bench-quick reproduce wheel lock clean

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
# Nothing that a command below it started outlives it.
SUPERVISED := $(PYTHON) scripts/supervised.py
# Compiled code of the batch verifier stays in the repository too.
export NUMBA_CACHE_DIR ?= $(CURDIR)/.venv/cache

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile
	@echo '  Options go into ARGS, for example: make demo ARGS="--vehicles 500 --epsilon 0.5"'

setup: ## prepare .venv in the repository, and nothing else
	@$(PYTHON) scripts/bootstrap.py all

demo: setup ## count 2,000 vehicles on the Bologna map with two aggregators; writes out/
	@$(BIN)/fleetcount demo $(ARGS)

test: ## all that a change can break, then two dozen planted bugs: 8 to 25 minutes on two cores; says what could not run here
	@$(PYTHON) scripts/bootstrap.py test
	@scripts/test $(ARGS)
	@$(if $(ARGS),,$(SUPERVISED) scripts/mutants --quick)

test-quick: ## of them those of rules, codecs and mechanisms, which start no program: under two minutes
	@$(PYTHON) scripts/bootstrap.py test
	@scripts/test --quick $(ARGS)

nightly: ## what is long: all tests with more draws, every planted bug, fuzzing, attacks, a million lists of failures, 1,000 trials under a fault; writes docs/attacks.md and docs/reliability.md
	@$(PYTHON) scripts/bootstrap.py nightly
	@echo "nightly: about six hours on two cores: tests 2 h, planted bugs 15 min, fuzzing 1 h, attacks 10 min, lists 1.5 h, trials 1 h"
	@scripts/test --nightly
	@$(SUPERVISED) scripts/mutants
	@$(BIN)/python -m tests.support.fuzz_decoders --seconds 3600
	@$(BIN)/python -m tests.attack.suite
	@$(BIN)/python -m tests.model --lists 1000000 --processes 2 --result out/lists.json
	@$(BIN)/python -m tests.campaign.soak --seconds 600 --result out/soak.json
	@$(BIN)/python -m tests.campaign --trials 1000 --seconds 3600 --lists-result out/lists.json --soak-result out/soak.json

mutants: ## plant every known bug and see its tests fail, about half an hour, less right after `make test`; ARGS="--package client"
	@$(PYTHON) scripts/bootstrap.py test
	@$(PYTHON) scripts/bootstrap.py check
	@$(SUPERVISED) scripts/mutants $(ARGS)

mutants-quick: ## a dozen of them, as after the tests of `make test`
	@$(PYTHON) scripts/bootstrap.py test
	@$(SUPERVISED) scripts/mutants --quick $(ARGS)

attack: ## every known attack on real processes; writes docs/attacks.md; ARGS="K3 H7" runs some
	@$(PYTHON) scripts/bootstrap.py test
	@$(BIN)/python -m tests.attack.suite $(ARGS)

attack-load: ## honest devices under ten times their load from hostile ones; ARGS="--quick" for smaller sizes
	@$(PYTHON) scripts/bootstrap.py test
	@$(BIN)/python scripts/bench.py attack_load $(ARGS)

fuzz: ## every decoder under coverage-guided mutations; ARGS="--seconds 3600", a finding becomes a vector
	@$(PYTHON) scripts/bootstrap.py nightly
	@$(BIN)/python -m tests.support.fuzz_decoders $(ARGS)

check: ## ruff, mypy, pyright, import-linter, names in documents, generated code, the documentation site
	@$(PYTHON) scripts/bootstrap.py check
	@$(SUPERVISED) scripts/check

docs: ## the documentation site in out/docs/html: all pages, the reference, a gallery that is executed; warnings are errors
	@$(PYTHON) scripts/bootstrap.py check
	@$(BIN)/python scripts/docs.py

bench: ## every figure beside its peer or limit, in one table and out/bench.json; ARGS="store" for some
	@$(PYTHON) scripts/bootstrap.py nightly
	@$(BIN)/python scripts/bench.py $(ARGS)

bench-quick: ## the same with smaller sizes, under three minutes; says which rows it leaves out and why; out/bench-quick.json
	@$(PYTHON) scripts/bootstrap.py test
	@$(BIN)/python scripts/bench.py --quick $(ARGS)

reproduce: setup ## the papers' experiments: figures, tables and claims.json in out/reproduce
	@$(BIN)/fleetcount reproduce all --output out/reproduce $(ARGS)

wheel: setup ## dist/fleetcount-*.whl and fleetcount_client-*.whl: the same bytes from the same sources, whoever builds them and when
	@$(BIN)/python scripts/wheel.py dist

lock: ## renew locks/ (digests of every distribution, the SBOM) from constraints.txt; needs uv
	@$(PYTHON) scripts/bootstrap.py all
	@$(BIN)/python scripts/lock.py

clean: ## remove .venv, out and caches
	rm -rf .venv out .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
