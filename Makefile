# On a machine with Python 3.11+ and make: `make sweep`, `make report` and `make test`; while developing `make quick`,
# before a pull request `make test-all`.
PYTHON ?= python3
VENV ?= .venv
BUDGET ?= 5m
RESULTS ?= results
WORKERS ?= auto
BIN = $(VENV)/bin
# Modules are compiled when they are imported: that saves some 40 s of processor time for an environment.
INSTALL = $(BIN)/pip install -q --no-compile -c constraints.txt

.PHONY: sweep report test test-all quick bench docs nullcuda nullcuda-quick check smoke dist clean

sweep: $(VENV)/.run
	$(BIN)/zobench sweep main_table --budget $(BUDGET) --results $(RESULTS)

report: $(VENV)/.report
	$(BIN)/zobench report --results $(RESULTS) --out report

# Without the tests marked slow; test-all runs these too. Large products of settings are thinned to their pairs, see
# tests/support/thinned.py; before a release: make test-all PYTEST=--products. Benchmarks run once, unmeasured.
PYTEST ?=
TEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --ignore tests/nullcuda $(PYTEST)

test: $(VENV)/.dev
	$(TEST) -m "not slow"

test-all: $(VENV)/.dev
	$(TEST)

quick: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.quick -n $(WORKERS) --dist load --maxschedchunk 4

# Steps in units of a plain MeZO loop's, taken in turn: `make bench SAVE=before`, a change, `make bench`. It fails where a
# median is a fifth above what was saved last on this machine.
bench: $(VENV)/.dev
	@test -n "$(SAVE)" || ls .benchmarks/*/*.json >/dev/null 2>&1 || { echo "nothing is saved to compare with: make bench SAVE=before"; exit 1; }
	$(BIN)/python -m pytest tests/benchmarks/test_fast.py -k plain_steps --benchmark-enable --benchmark-time-unit=s \
	    $(if $(SAVE),--benchmark-save=$(SAVE),--benchmark-compare --benchmark-compare-fail=median:20%)

# The pages as one site, with every table and figure; what Sphinx warns of ends the build.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs

# The CUDA path without a GPU, see tests/nullcuda: torch's CUDA build (526 MB, once) over a null runtime. Everything, and
# what continuous integration has the time for.
NULLCUDA = OMP_NUM_THREADS=1 NULLCUDA_MACHINE=2xh100 $$($(BIN)/python -m tests.nullcuda.build) -m pytest -n $(WORKERS) --dist worksteal -p tests.nullcuda.plugin
# What starts the null GPU's interpreter for itself; the other two run in it.
STARTING = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/nullcuda \
    --ignore tests/nullcuda/test_engine.py --ignore tests/nullcuda/test_parity.py

# The kernels' compiler beside the pinned one: whoever has a newer torch has a newer Triton.
OTHER_TRITON = 3.9.0

nullcuda: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.nullcuda.build
	$(STARTING)
	OMP_NUM_THREADS=1 ZOBENCH_ALL_KERNELS=1 $(BIN)/python -m pytest -n $(WORKERS) tests/kernels/test_ahead_of_time.py
	$(BIN)/pip install -q --no-deps --upgrade --target $(VENV)/other-triton triton==$(OTHER_TRITON)
	OMP_NUM_THREADS=1 PYTHONPATH=$(VENV)/other-triton $(BIN)/python -m pytest -n $(WORKERS) tests/kernels/test_ahead_of_time.py
	$(NULLCUDA) -m gpu

nullcuda-quick: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.nullcuda.build
	$(STARTING)
	$(NULLCUDA) -m gpu tests/gpu tests/nullcuda/test_engine.py tests/nullcuda/test_parity.py -k "$(NULLCUDA_QUICK)"
NULLCUDA_QUICK = budget or found or timeline or sanitizer or pinned_in_part or watch_for_waits or opt-tiny-tile-inf or block-1-none or ledger and linear or zo-adam or pertp-sliced or lora or tile-3-fp8

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

smoke: $(VENV)/.run
	$(BIN)/zobench sweep smoke --results $(VENV)/smoke $(SMOKE)

dist:
	PYTHON=$(PYTHON) .ci/installed dist

# torch first and pinned: the CUDA build, with gigabytes of libraries, where an NVIDIA driver is present, else the CPU
# build, from its own index unless pip is configured to look elsewhere. It says which, and why.
$(VENV)/.run: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) $$($(BIN)/python .ci/torch_build.py)
	$(INSTALL) -e .
	touch $@

$(VENV)/.report: $(VENV)/.run
	$(INSTALL) -e '.[report]'
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(INSTALL) -e '.[dev]'
	touch $@

$(VENV)/.docs: $(VENV)/.run
	$(INSTALL) -e '.[docs]'
	touch $@

clean:
	rm -rf $(VENV)
