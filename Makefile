# Everything starts from Python >= 3.11 and make; what is installed goes to .venv and nowhere else.
#
#   make serve [ARGS='--port 8123']   install, fetch the demo model, serve it on 127.0.0.1:8000
#   make test  [ARGS='-k scheduler']  install what tests need, run all of them
#   make check                        style, types, imports, structure
#   make check-kernels                the native kernels under sanitizers
#   make bench                        graftlm beside transformers, and what plugins cost
#   make bench-check [BASE=HEAD~1]    is this commit slower than an earlier one?
#   make fmt · make docs · make install · make clean

PYTHON ?= python3
MODEL ?= demo
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
COMPILER := $(or $(shell command -v c++),$(shell command -v g++),$(shell command -v clang++))
KERNEL_SOURCES := kernels/pyproject.toml kernels/CMakeLists.txt $(wildcard kernels/native/* kernels/src/*/*)

.DEFAULT_GOAL := help
.PHONY: help install serve test check check-kernels fmt bench bench-check docs clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -n 9

# pip, not uv: pip takes a torch wheel for the CPU that already lies on the machine. pip and setuptools stay in
# .venv, since `graftlm fetch demo` and the plugin tests call them.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "graftlm needs Python >= 3.11; this is $$($(PYTHON) --version). Set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "making the virtual environment $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# Entry points are written at install time, so a changed pyproject.toml installs again.
$(STAMPS)/install: pyproject.toml | $(BIN)/python
	@echo "installing graftlm and what it needs into $(VENV); torch is large, so this takes a while"
	@$(PIP) pip 'setuptools>=77' wheel
	@$(PIP) --editable .
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/test: $(STAMPS)/install
	@echo "installing what the tests need"
	@$(PIP) --editable '.[test]'
	@touch $@

$(STAMPS)/check: $(STAMPS)/install
	@echo "installing what the checks need"
	@$(PIP) --editable '.[check,test]'
	@touch $@

# The native kernels are built where there is a C++ compiler; without them graftlm computes in plain torch. Built anew
# where they cannot be loaded, whatever became of them, and tried again where that failed.
ifeq ($(shell $(BIN)/python -c 'import graftlm_kernels._native; print("loads")' 2> /dev/null),)
.PHONY: $(STAMPS)/kernels
endif
$(STAMPS)/kernels: $(KERNEL_SOURCES) | $(STAMPS)/install
	@if [ -z "$(COMPILER)" ]; then \
	  echo "no C++ compiler: graftlm computes in plain torch, which is slower" >&2; \
	elif echo "building graftlm-kernels" && $(PIP) ./kernels; then \
	  touch $@; \
	else \
	  echo "warning: graftlm-kernels were not built; graftlm computes in plain torch, which is slower" >&2; \
	fi

install: $(STAMPS)/install $(STAMPS)/kernels

serve: install
	@exec $(BIN)/graftlm serve $(MODEL) $(ARGS)

test: $(STAMPS)/test $(STAMPS)/kernels
	$(BIN)/python -m pytest $(ARGS)

check: $(STAMPS)/check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest tests/check -m 'not demo'

# The kernels alone, without Python: under AddressSanitizer and UBSan (FULL= runs the reduced grid), then, since
# threads meet in the same places whatever the shapes, the reduced grid under ThreadSanitizer.
FULL := full
check-kernels:
	@if [ -n "$(COMPILER)" ] && command -v cmake > /dev/null; then \
	  kernels/check.sh address $(FULL) && kernels/check.sh thread; \
	else echo "no C++ compiler or no cmake: the kernels are not checked"; fi

fmt: $(STAMPS)/check
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

bench: $(STAMPS)/test $(STAMPS)/kernels
	$(BIN)/python -m benchmarks.peers --transformers $(ARGS)
	$(BIN)/python -m benchmarks.plugins

# Fails only on a difference that its own spread cannot explain; some five minutes of a quiet machine.
BASE ?= HEAD~1
bench-check: $(STAMPS)/test $(STAMPS)/kernels
	$(BIN)/python -m benchmarks.regression --base $(BASE) $(ARGS)

# The pages under docs/ are plain Markdown; their tables are written from the code, and what can rot is tested.
docs: $(STAMPS)/check
	$(BIN)/python docs/generate.py
	$(BIN)/python -m pytest tests/check -k 'docs or readme'

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
