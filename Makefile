# `make demo` and `make test` need Python 3.11 or newer and nothing else: they build .venv first.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet
LOCKED := --require-hashes --no-deps --only-binary :all:

.PHONY: help install demo test test-slow test-oldest fuzz kill mutants check format lock readme clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: .venv/product ## the gmmc command in .venv, a minute or two

demo: .venv/product ## train on the digits, evaluate, draw samples, write a report, predict: about four minutes
	$(BIN)/gmmc train recipes/digits.toml --out runs/demo
	$(BIN)/gmmc evaluate runs/demo
	$(BIN)/gmmc evaluate runs/demo robustness generation
	$(BIN)/gmmc sample runs/demo
	$(BIN)/gmmc report runs/demo
	$(BIN)/gmmc examples runs/demo
	$(BIN)/gmmc predict runs/demo runs/demo/examples
	@echo
	@echo "Look at  runs/demo/report.html       (all of the above on one page, in a browser),"
	@echo "         runs/demo/samples/grid.png  (a hundred digits that it drew, with their classes),"
	@echo "read     runs/demo/results.json      (the numbers with their conditions),"
	@echo "try      .venv/bin/gmmc predict runs/demo IMAGE --resize"

test: .venv/dev ## the tests, two to four minutes
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile

test-slow: .venv/dev ## the tests that take longer: the demo's promises, kill -9
	$(BIN)/python -m pytest -m slow -n 2 --dist loadfile

test-oldest: ## the lowest versions that pyproject.toml allows, in an environment of their own: a few minutes
	PYTHON=$(PYTHON) .ci/oldest

fuzz: .venv/dev ## thousands of hostile inputs, a process each; CASES="models images -n 100" or CASES=models/17
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m fuzz $(CASES)

kill: .venv/dev ## kill trainings, drawings and attacks a hundred times, and compare: half an hour
	$(BIN)/python tests/kill.py

mutants: .venv/dev ## faults in the source that the tests must notice; WORDS="buffer" for those named so
	$(BIN)/python tests/mutants $(WORDS)

check: .venv/dev ## format, lint, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile

format: .venv/dev ## let ruff format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: ## fit requirements*.lock to pyproject.toml; UPGRADE=--upgrade takes the newest versions
	PYTHON=$(PYTHON) .ci/lock $(UPGRADE)

readme: .venv/product ## put the numbers of results/ into README.md and docs/log.md
	$(BIN)/python docs/readme.py

clean: ## forget the environment and build products, keep runs/
	rm -rf .venv dist .pytest_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "gmmc needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) --version 2>&1); try make PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv .venv

# The lock has all but torch, whose builds (CPU, CUDA) differ: pip adds what the build at hand needs, so no --no-deps.
.venv/product: pyproject.toml constraints.txt requirements.lock | $(BIN)/python
	@echo "installing gmmc and its dependencies into .venv (a minute or two)"
	$(PIP) $(LOCKED) --requirement requirements.lock
	$(PIP) --constraint constraints.txt torch
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

.venv/dev: .venv/product requirements-dev.lock
	$(PIP) $(LOCKED) --requirement requirements-dev.lock
	@touch $@
