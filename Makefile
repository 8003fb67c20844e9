# Two commands on a machine with Python 3.11+ and make: `make sweep` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BUDGET ?= 5m
BIN = $(VENV)/bin

.PHONY: sweep test check smoke clean

sweep: $(VENV)/.run
	$(BIN)/zobench sweep main_table --budget $(BUDGET)

test: $(VENV)/.dev sweep
	$(BIN)/python -m pytest

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

smoke: $(VENV)/.run
	$(BIN)/zobench sweep smoke --results $(VENV)/smoke

# torch first and pinned: an unpinned one pulls gigabytes of CUDA libraries onto machines that have no GPU.
$(VENV)/.run: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e .
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV)
