# Every target makes the virtual environment by itself when it is missing or older than pyproject.toml.
PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 2

N ?= 500
SEED ?= 0
# The compiled core is built with the environment, and again when its sources change.
NATIVE := $(wildcard native/*.h native/*.cpp native/CMakeLists.txt)

.PHONY: help train train-distributed test test-all fuzz soak lint bench docs wheel release sanitize clean

help:
	@echo "make train  train a Flax Tree-LSTM on ListOps with jitbatch, a few minutes"
	@echo "make train-distributed  the same in two processes of this machine"
	@echo "make test   lint, type check, unit tests and doctests"
	@echo "make test-all  the same with slow tests"
	@echo "make fuzz   N random programs against the plain loop; SEED=1 for others; goes on where it was stopped"
	@echo "make soak   an hour of random programs, damaged files, and whether memory grows"
	@echo "make lint   ruff, pyright and clang-format"
	@echo "make bench  the benchmarks, some minutes; BENCH='--data DIR --full --minutes N' for all of them, hours"
	@echo "make docs   the documentation, as HTML in docs/_build/html"
	@echo "make wheel  a wheel with the compiled core and one without, each tested in an environment of its own"
	@echo "make release  sdist and wheel, checked by twine, and the README's example run from the wheel alone"
	@echo "make sanitize  the tests of the compiled core under AddressSanitizer and UBSan"

.venv/.train: pyproject.toml $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[train]'
	touch $@

# Where there is a compiler, the core must build, and a warning is an error.
.venv/.dev: pyproject.toml $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' \
	    --config-settings=cmake.define.JITBATCH_WARNINGS=ON
	! command -v $(CXX) > /dev/null || JITBATCH_CORE=native $(BIN)/python -c 'import jitbatch'
	touch $@

.venv/.bench: .venv/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	touch $@

train: .venv/.train
	$(BIN)/jitbatch train listops

train-distributed: .venv/.train
	$(BIN)/jitbatch train listops --local-processes 2

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
	$(BIN)/clang-format --dry-run -Werror native/*.cpp native/*.h
	$(BIN)/pyright

bench: .venv/.bench
	$(BIN)/python bench/run.py $(BENCH)

docs: .venv/.dev
	$(BIN)/python -m sphinx -W -b html docs docs/_build/html

# A machine for which there is no compiled wheel takes the pure one, and plans in Python.
WHEEL := build/wheel
wheel:
	rm -rf $(WHEEL) && $(PYTHON) -m venv $(WHEEL)/native && $(PYTHON) -m venv $(WHEEL)/python
	$(WHEEL)/native/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(WHEEL)/native/dist \
	    --config-settings=cmake.define.JITBATCH_WARNINGS=ON --config-settings=build-dir=$(WHEEL)/build .
	$(WHEEL)/python/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(WHEEL)/python/dist \
	    --config-settings=wheel.cmake=false .
	test -f $(WHEEL)/python/dist/jitbatch-*-py3-none-any.whl
	for core in native python; do \
	    $(WHEEL)/$$core/bin/python -m pip install --quiet --disable-pip-version-check \
	        $(WHEEL)/$$core/dist/*.whl pytest hypothesis flax equinox && \
	    (cd tests && JITBATCH_CORE=$$core ../$(WHEEL)/$$core/bin/python -m pytest -c ../pyproject.toml core) || exit 1; \
	done
	mkdir -p dist && cp $(WHEEL)/*/dist/*.whl dist/

# The wheel is built from the sdist, so that both are complete. The second environment holds the wheel and what it asks for.
RELEASE := build/release
release:
	rm -rf $(RELEASE) && $(PYTHON) -m venv $(RELEASE)/tools && $(PYTHON) -m venv $(RELEASE)/clean
	$(RELEASE)/tools/bin/python -m pip install --quiet --disable-pip-version-check build twine
	$(RELEASE)/tools/bin/python -m build --outdir $(RELEASE)/dist .
	$(RELEASE)/tools/bin/python -m twine check --strict $(RELEASE)/dist/*
	$(RELEASE)/clean/bin/python -m pip install --quiet --disable-pip-version-check $(RELEASE)/dist/*.whl
	cd $(RELEASE) && JITBATCH_CORE=native clean/bin/python $(CURDIR)/tests/docs/pages.py $(CURDIR)/README.md
	mkdir -p dist && cp $(RELEASE)/dist/* dist/

SANITIZED := build/sanitized
sanitize:
	test -x $(SANITIZED)/bin/python || $(PYTHON) -m venv $(SANITIZED)
	$(SANITIZED)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' \
	    --config-settings=cmake.define.JITBATCH_SANITIZE=ON --config-settings=cmake.define.JITBATCH_WARNINGS=ON \
	    --config-settings=build-dir=$(SANITIZED)/build
	ASAN_OPTIONS=detect_leaks=0 JITBATCH_CORE=native LD_PRELOAD="$$($${CXX:-c++} -print-file-name=libasan.so)" \
	    $(SANITIZED)/bin/python -m pytest -n 0 tests/core tests/record/test_finalise.py \
	    tests/record/test_compiled_calls.py tests/record/test_held_parts.py tests/record/test_decorated.py \
	    tests/record/test_known_structures.py tests/plan/test_refill.py tests/ir/test_input_rows.py \
	    tests/rollout/test_stretches.py

clean:
	rm -rf .venv build docs/_build .pytest_cache .ruff_cache .hypothesis
