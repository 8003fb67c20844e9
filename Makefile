# On a machine with Python 3.11+ and make: `make sweep`, `make report` and `make test`; while developing `make quick`.
PYTHON ?= python3
VENV ?= .venv
BUDGET ?= 5m
RESULTS ?= results
WORKERS ?= auto
BIN = $(VENV)/bin

.PHONY: sweep report test quick check smoke clean

sweep: $(VENV)/.run
	$(BIN)/zobench sweep main_table --budget $(BUDGET) --results $(RESULTS)

report: $(VENV)/.report
	$(BIN)/zobench report --results $(RESULTS) --out report

test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --ignore tests/benchmarks
	$(BIN)/python -m pytest tests/benchmarks

quick: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.support.quick -n $(WORKERS) --dist load --maxschedchunk 4

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

smoke: $(VENV)/.run
	$(BIN)/zobench sweep smoke --results $(VENV)/smoke

# torch first and pinned. Where pip finds its CPU build (PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu) it takes
# that one; elsewhere, on Linux, the CUDA build with gigabytes of libraries.
$(VENV)/.run: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e .
	touch $@

$(VENV)/.report: $(VENV)/.run
	$(BIN)/pip install -q -c constraints.txt -e '.[report]'
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV)
