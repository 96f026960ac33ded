# Every target makes the virtual environment by itself when it is missing or older than pyproject.toml.
PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 2

N ?= 500
SEED ?= 0

.PHONY: help train test test-all fuzz soak lint bench docs clean

help:
	@echo "make train  train a Flax Tree-LSTM on ListOps with jitbatch, a few minutes"
	@echo "make test   lint, type check, unit tests and doctests"
	@echo "make test-all  the same with slow tests"
	@echo "make fuzz   N random programs against the plain loop; SEED=1 for others; goes on where it was stopped"
	@echo "make soak   an hour of random programs, damaged files, and whether memory grows"
	@echo "make lint   ruff and pyright"
	@echo "make bench  the benchmarks, some minutes; BENCH='--data DIR --full --minutes N' for all of them, hours"
	@echo "make docs   the documentation, as HTML in docs/_build/html"

.venv/.train: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[train]'
	touch $@

.venv/.dev: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

.venv/.bench: .venv/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	touch $@

.venv/.docs: .venv/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

train: .venv/.train
	$(BIN)/jitbatch train listops

test: lint
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow"

test-all: lint
	$(BIN)/python -m pytest -n $(WORKERS)

fuzz: .venv/.dev
	cd tests && ../$(BIN)/python -m fuzz --count $(N) --seed $(SEED)

soak: .venv/.dev
	cd tests && ../$(BIN)/python -m fuzz --count 1000000 --seconds 3000 --seed $(SEED)
	cd tests && ../$(BIN)/python -m fuzz.files --seed $(SEED)
	cd tests && ../$(BIN)/python -m fuzz.memory --seconds 600

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: .venv/.bench
	$(BIN)/python bench/run.py $(BENCH)

docs: .venv/.docs
	$(BIN)/python -m sphinx -W -b html docs docs/_build/html

clean:
	rm -rf .venv docs/_build .pytest_cache .ruff_cache .hypothesis
