# The four commands of a working day. Each one sets up what it needs first, so that any of them works on a fresh machine.
#
#   make setup    a virtual environment in .venv with the exact versions of constraints.txt
#   make check    format, lint, types
#   make test     the tests; `make test ARGS="tests/unit -k packing"` passes options on to pytest
#   make demo     the main job on samples/, in two to five minutes on two cores, into runs/demo
#   make clean    removes .venv, caches and runs/demo; other runs are yours and stay
#
# PYTHON=python3.12 chooses the interpreter. pip's own variables choose where packages come from, for example
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu for the smaller CPU build of torch on Linux.

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
CANDIDATES := $(or $(PYTHON),python3.13 python3.12 python3.11 python3)
TORCH := $(shell grep '^torch==' constraints.txt)

.DEFAULT_GOAL := help
.PHONY: help setup check test demo clean

help:
	@sed -n 's/^#   \(make .*\)/\1/p' Makefile

setup: $(INSTALLED)

# A candidate must run (a version manager's name for a Python that is not installed does not), be of a supported version,
# and be able to make virtual environments (on Debian and Ubuntu that is a package of its own).
# torch goes first and alone: whatever depends on it then finds it there, in the build that the package index prefers.
$(INSTALLED): pyproject.toml constraints.txt
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	    for python in $(CANDIDATES); do \
	        if "$$python" -c 'import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then \
	            found=$$python; break; \
	        fi; \
	    done; \
	    if [ -z "$$found" ]; then \
	        echo "make setup: no Python 3.11, 3.12 or 3.13 with the modules venv and ensurepip among: $(CANDIDATES)." >&2; \
	        echo "Install one (on Debian or Ubuntu: apt install python3 python3-venv), or name it: make setup PYTHON=/path/to/python3.12" >&2; \
	        exit 2; \
	    fi; \
	    echo "Making $(VENV) with $$("$$found" --version)"; \
	    "$$found" -m venv --clear $(VENV); \
	fi
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(TORCH)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

check: setup
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

# A process of its own for each core, up to eight, which all tests of a file share; `ARGS=-n0` is one process, as pytest alone is.
test: setup
	$(BIN)/python -m pytest --numprocesses logical --maxprocesses 8 --dist loadfile $(ARGS)

demo: setup
	PATH="$(CURDIR)/$(BIN):$$PATH" samples/demo.sh

clean:
	rm -rf $(VENV) build dist runs/demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
