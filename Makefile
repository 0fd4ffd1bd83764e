# Every target makes what it needs: `make run` and `make test` work as the first command in a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup run test test-fast test-matrix test-all lint format check docs bench mutants fuzz soak clean

setup: $(READY)

$(READY): pyproject.toml requirements.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "raylfl needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	rm -f $(VENV)/lib/python*/site-packages/raylfl-torchvision.pth  # of earlier set-ups, as is a torchvision beside it
	$(BIN)/python -m pip uninstall -qq --yes --disable-pip-version-check torchvision
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $(READY)

run: setup
	$(BIN)/raylfl compare digits --algorithms focus,fedavg,sfl

test test-fast test-all: export PYTHONDONTWRITEBYTECODE =  # rewritten asserts, and raylfl for hundreds of processes

test: setup
	$(BIN)/python -m pytest -n auto --dist loadgroup $(ARGS)

test-fast: setup
	$(BIN)/python -m pytest -n auto --dist loadgroup -m "not slow and not long and not exhaustive" $(ARGS)

test-matrix: setup
	$(BIN)/python -m benchmarks.matrix $(ARGS)

test-all: setup
	$(BIN)/python -m pytest -n auto --dist loadgroup -m "" $(ARGS)

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python docs/reference.py
	$(BIN)/python docs/notebooks.py

check: format lint test

docs: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-docs.txt
	PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: setup
	$(BIN)/python -m benchmarks $(ARGS)

mutants: setup
	$(BIN)/python -m benchmarks.mutants $(ARGS)

fuzz: setup
	$(BIN)/python -m benchmarks.fuzz $(ARGS)
	$(BIN)/python -m benchmarks.differential $(ARGS)

soak: setup
	$(BIN)/python -m benchmarks.soak $(ARGS)

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
