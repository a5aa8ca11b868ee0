# The set-up is pip in a virtual environment; `make run` and `make test` make it when it is not there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 3  # tests at once: one more than cores, because many wait for processes

export PYTHONDONTWRITEBYTECODE =  # compiled modules are kept: tests start many processes

.PHONY: run test check accuracy comparison streams bench docs clean

run: $(READY)  ## watch a model adapt from printed digits to handwriting (ARGS="--learners 4" for more)
	$(BIN)/crodobo run $(ARGS)

test: check  ## everything that must hold, in random order (about 4 minutes on two cores)
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

check: $(READY)  ## lint, format, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

accuracy: $(READY)  ## the accuracy bars in full (about 10 minutes on two cores)
	$(BIN)/python benchmarks/accuracy.py $(ARGS)

comparison: $(READY)  ## all methods on glyphs as published, and the bars of that comparison (about 15 minutes on two cores)
	$(BIN)/crodobo compare --plain --benchmark glyphs --methods all --seeds 0,1,2 --out runs/comparison $(ARGS)
	$(BIN)/python benchmarks/comparison.py runs/comparison/comparison.json

streams: $(READY)  ## the matrix of streams: is adapting ever worse than not adapting? (hours; ARGS="--data FOLDER --jobs 2")
	$(BIN)/python benchmarks/streams.py $(ARGS)

bench: $(READY)  ## speed and memory (benchmarks/burning.py and reading.py measure erasing and reading)
	$(BIN)/python benchmarks/speed.py $(ARGS)

docs: $(READY)  ## the documentation, into site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(READY): pyproject.toml constraints.txt hatch_build.py src/crodobo/burn/zero_on_free.c
	$(PYTHON) -c 'import sys; sys.exit("crodobo needs Python 3.11 or newer; name one with make PYTHON=…" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:  ## remove the environment and everything made, results excepted
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
