# make demo and make test set everything up by themselves; make help lists the rest.
# Overrides: VENV=<folder> PYTHON=<interpreter> JOBS=<pytest processes> TORCH=<requirement> PYTEST_ARGS=<more arguments>

VENV ?= .venv
PYTHON ?= python3
JOBS ?= 2
N ?= 20000
PYTEST_ARGS ?=
BENCH_ARGS ?=
# torch goes in first and alone, so that no open range can pick another build of it.
TORCH ?= $(shell head -n 1 requirements/test.txt)

PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
PYTEST := $(PY) -m pytest
TYPED := $(wildcard thunder/core thunder/extend thunder/transforms)
PROSE := $(wildcard README.md CHANGELOG.md Makefile MANIFEST.in pyproject.toml setup.py .ci/run requirements docs examples notebooks thunder)
PACKAGING := setup.py pyproject.toml requirements/base.txt thunder/__about__.py

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test unit lint types bench fuzz docs ops-report test-ops gpu clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.base ## install thunder and run examples/quickstart.py
	$(PY) examples/quickstart.py

test: $(VENV)/.test ## install with the test extra and run the whole suite
	$(PYTEST) -n $(JOBS) --durations=20 thunder/tests $(PYTEST_ARGS)

unit: $(VENV)/.test ## run the unit tests only
	$(PYTEST) -n $(JOBS) thunder/tests/unit $(PYTEST_ARGS)

lint: $(VENV)/.test ## ruff and codespell
	$(PY) -m ruff check .
	$(VENV)/bin/codespell $(PROSE)

types: $(VENV)/.test ## mypy on the typed packages
	$(if $(TYPED),$(PY) -m mypy $(TYPED),@echo "types: no typed package yet")

bench: $(VENV)/.test ## eager, torch.compile and thunder side by side
	$(PY) -m thunder.benchmarks $(BENCH_ARGS)

fuzz: $(VENV)/.test ## N generated in-place programs against eager (N=20000)
	THUNDER_FUZZ_EXAMPLES=$(N) $(PYTEST) thunder/tests/inplace -k generated --timeout=0 $(PYTEST_ARGS)

docs: $(VENV)/.docs ## build docs/_build/html
	$(PY) -m sphinx -W --keep-going -b html docs docs/_build/html

ops-report: $(VENV)/.test ## share of torch's operator samples that pass, per column
	$(PY) -m thunder.tests.ops.report

test-ops: $(VENV)/.test ## the whole operator suite, not just its fast tier
	THUNDER_OPS_TIER=full $(PYTEST) -n $(JOBS) --durations=20 thunder/tests/ops $(PYTEST_ARGS)

gpu: $(VENV)/.test ## the tests that need a CUDA device
	$(PYTEST) -m cuda --durations=20 thunder/tests $(PYTEST_ARGS)

clean: ## remove what builds and tools wrote, but not the environment
	rm -rf build dist docs/_build .pytest_cache .ruff_cache .mypy_cache .hypothesis *.egg-info
	find thunder examples -name __pycache__ -type d -prune -exec rm -rf {} +

# Environments. A stamp is newer than what it was installed from, so a second run installs nothing.

$(PY):
	$(PYTHON) -c 'import sys; sys.exit("thunder needs Python 3.10 or newer" if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: $(PACKAGING) | $(PY)
	$(PIP) install "$(TORCH)"
	$(PIP) install -e .
	@touch $@

$(VENV)/.test: requirements/test.txt $(VENV)/.base
	$(PIP) install -r requirements/test.txt -e ".[test]"
	@touch $@

$(VENV)/.docs: requirements/docs.txt $(VENV)/.base
	$(PIP) install -r requirements/docs.txt
	@touch $@
