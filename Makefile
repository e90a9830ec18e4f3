# `make demo` and `make test` work in a fresh clone, a second time without a network, and two at once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
# Processes that run the tests: one a core, each with about 1 GB of memory (an estimate).
TESTERS ?= 2
# One more for the slow tests, which wait for processes, disks and servers.
SLOW_TESTERS ?= 3

.PHONY: demo test types quick-tests test-slow test-all torture bench clean

demo: $(VENV)/.demo
	$(BIN)/surestep train digits --report

# Four minutes on two cores. Needs no compiler and no library beyond the extra `dev`.
# mypy needs one core only, so it runs beside the tests.
test: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/lint-imports
	$(MAKE) -j 2 types quick-tests

types: $(VENV)/.dev
	$(BIN)/mypy

quick-tests: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(TESTERS) -m "not slow"

# What `make test` leaves out: 11 minutes. tests/tiers.py lists it with reasons. Needs a C++ compiler.
test-slow: $(VENV)/.dev-all
	$(BIN)/python -m pytest -n $(SLOW_TESTERS) -m slow

test-all: test test-slow

# All combinations of the cases, killed; 500 kills during a save; corrupted files; full disks;
# restarts by torchrun. The disks need root.
torture: $(VENV)/.dev-all
	$(BIN)/python -m tests.torture

bench: .venv-bench/.bench
	.venv-bench/bin/python -m benchmarks.run

# A marker file, newer than pyproject.toml, records an installed extra, so a second call needs no
# network. install.sh holds a lock, so two calls at once install once.
$(VENV)/.demo: pyproject.toml install.sh constraints.txt
	sh install.sh $(VENV) demo "$(PYTHON)" "$(TORCH)"

$(VENV)/.dev: pyproject.toml install.sh constraints.txt
	sh install.sh $(VENV) dev "$(PYTHON)" "$(TORCH)"

$(VENV)/.dev-all: pyproject.toml install.sh constraints.txt
	sh install.sh $(VENV) dev-all "$(PYTHON)" "$(TORCH)"

.venv-bench/.bench: pyproject.toml install.sh constraints.txt
	sh install.sh .venv-bench bench "$(PYTHON)" "$(TORCH)"

clean:
	rm -rf $(VENV) .venv-bench
