# Two commands set everything up on a fresh machine: `make serve` and `make test`.
# Prerequisites: Python 3.11+, a C++17 compiler, make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := CMakeLists.txt pyproject.toml constraints.txt $(wildcard csrc/*.cpp csrc/*.h csrc/*/*.cpp csrc/*/*.h)

.PHONY: serve test check lint types sanitize bench exact fault fuzz clean format

serve: $(VENV)/.run  ## environment, build, demo model, server
	$(BIN)/ramet serve

test: $(VENV)/.dev  ## all tests, two files at a time
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

check: lint types sanitize test  ## what has to hold before anything lands: `make test`, and the gates before it

lint: $(VENV)/.dev
	$(BIN)/ruff check src tests tools
	$(BIN)/ruff format --check src tests tools
	$(BIN)/clang-format --dry-run --Werror $(shell find csrc -name '*.cpp' -o -name '*.h')

types: $(VENV)/.dev
	$(BIN)/mypy

sanitize: $(VENV)/.dev  ## kernels and automata against plain definitions, under ASan and UBSan
	$(BIN)/cmake -G Ninja -B build/sanitize -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DCMAKE_BUILD_TYPE=Debug \
	  -DRAMET_SELFCHECK=ON -DRAMET_SANITIZE=ON -DRAMET_SOFTWARE_TILES=ON . > /dev/null
	$(BIN)/ninja -C build/sanitize --quiet
	build/sanitize/selfcheck
	build/sanitize/selfcheck_automaton

format: $(VENV)/.dev
	$(BIN)/ruff check --fix src tests tools
	$(BIN)/ruff format src tests tools
	$(BIN)/clang-format -i $(shell find csrc -name '*.cpp' -o -name '*.h')

exact: $(VENV)/.dev  ## the whole exactness matrix (make check runs a pairwise cover), and random walks and rows in numbers
	RAMET_EXACT=full $(BIN)/python -m pytest tests/e2e/test_exactness.py tests/model_based/test_kv_machine.py tests/conformance/test_backend_sampling.py

fault: $(VENV)/.dev  ## the faults of the HTTP server in their full size; H8 needs root and ip(8)
	RAMET_FAULT=full $(BIN)/python -m pytest tests/unit/server tests/e2e/server tests/fault

FUZZ_SECONDS ?= 300
fuzz: $(VENV)/.dev  ## each fuzzer for five minutes; what fails is left in build/fuzz
	$(BIN)/python tests/fuzz/run.py --seconds $(FUZZ_SECONDS)

BENCH := build/bench
bench: $(VENV)/.run  ## machine, engine, tree, growth; the pictures in docs/bench are drawn anew
	$(BIN)/ramet bench limits --save $(BENCH)/limits.json
	$(BIN)/ramet bench engine --save $(BENCH)/engine.json
	$(BIN)/ramet bench engine --kernels --save $(BENCH)/kernels.json
	$(BIN)/ramet bench cache
	$(BIN)/ramet bench growth --save $(BENCH)/growth.json
	$(BIN)/python tools/draw_bench.py $(BENCH) docs/bench

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Ramet needs Python 3.11 or later; try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(VENV)/pyvenv.cfg $(NATIVE)
	@echo "building Ramet into $(VENV); the first time takes a minute or two"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(VENV)/pyvenv.cfg $(NATIVE)
	@echo "building Ramet and its checks into $(VENV); the first time takes a few minutes"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.run
