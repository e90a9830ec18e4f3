# `make demo` and `make test` work in a fresh clone, a second time without a network, two at once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
# Processes that run the tests: as many cores as may be kept busy, each with 1 GB of memory by a guess.
TESTERS ?= 2

.PHONY: demo test torture bench clean

demo: $(VENV)/.demo
	$(BIN)/surestep train digits

test: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n $(TESTERS)

# Every combination of what a run may be like, killed; 500 kills within a save; damage; full disks;
# restarts by torchrun.
# The disks need root.
torture: $(VENV)/.dev
	$(BIN)/python -m tests.torture

bench: .venv-bench/.bench
	.venv-bench/bin/python -m benchmarks.run

# What is installed is marked by a file, newer than pyproject.toml, so that a second call needs no
# network. `install.sh` holds a lock, so that two calls at once install once.
$(VENV)/.demo: pyproject.toml install.sh
	sh install.sh $(VENV) demo "$(PYTHON)" "$(TORCH)"

$(VENV)/.dev: pyproject.toml install.sh
	sh install.sh $(VENV) dev "$(PYTHON)" "$(TORCH)"

.venv-bench/.bench: pyproject.toml install.sh
	sh install.sh .venv-bench bench "$(PYTHON)" "$(TORCH)"

clean:
	rm -rf $(VENV) .venv-bench
