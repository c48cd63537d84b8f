# PyC's commands; `make help` lists them. Each makes or reuses .venv and installs what it needs
# from PyPI; a stamp per set of packages makes the next run start at once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

# Tests and lit find pyc-opt and its sisters here.
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help demo test test-frameworks test-full lint lint-types lint-rest docs site bench-env lavapipe gpu clean live postgres typing

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/stamp-demo ## compile and run a trained model beside plain IREE
	$(BIN)/python -m pyc_mlir.tools.demo

test: $(VENV)/stamp-dev ## run the tests, long tables sampled
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=20 \
	  --ignore=test/py/frameworks --ignore=test/py/lint
	$(BIN)/lit -q -j2 $$($(BIN)/python test/py/support/lit_only.py)

test-frameworks: $(VENV)/stamp-dev $(VENV)/stamp-frameworks ## run the tests that need torch, jax, ...
	PYC_FRAMEWORKS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --durations=20 test/py/frameworks

test-full: $(VENV)/stamp-dev $(VENV)/stamp-frameworks ## run slices of all tests: SLICE="a b", LIST=1, CHANGED=1
	$(if $(LIST)$(filter-out live,$(SLICE)),,@$(MAKE) --no-print-directory live || echo "no Prometheus or Chromium: their tests skip")
	PYC_FRAMEWORKS=1 $(BIN)/python test/full.py $(if $(LIST),--list) $(if $(CHANGED),--changed) $(SLICE)

lint: $(VENV)/stamp-dev typing ## check style, types, layers and that generated docs are current
	@$(MAKE) --no-print-directory --output-sync=target -j2 lint-types lint-rest

lint-types:
	$(BIN)/pyright --project pyproject.toml

lint-rest:
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python -m pytest -q test/py/lint
	$(BIN)/python test/py/support/pages.py --check

docs: $(VENV)/stamp-dev ## write the generated pages of docs/
	$(BIN)/python test/py/support/pages.py

site: $(VENV)/stamp-docs typing docs ## build the docs site with the API reference into build/site
	$(BIN)/mkdocs build --quiet

bench-env: $(VENV)/stamp-bench ## install what benchmarks compare with
	$(BIN)/python -m pyc_mlir.tools.pyc_bench env

postgres: ## install Debian's PostgreSQL server, which tests start without root
	dpkg -s postgresql >/dev/null 2>&1 || { $(SUDO) apt-get update && \
	  $(SUDO) apt-get install --yes --no-install-recommends postgresql; }

live: ## install Debian's Prometheus server and Chromium, which tests of pyc-serve start
	@for name in prometheus chromium; do \
	  command -v $$name >/dev/null || missing="$$missing $$name"; done; \
	[ -z "$$missing" ] || { $(SUDO) apt-get update && \
	  $(SUDO) apt-get install --yes --no-install-recommends $$missing; }

lavapipe: ## install Debian's software Vulkan device
	dpkg -s mesa-vulkan-drivers libvulkan1 >/dev/null 2>&1 || { $(SUDO) apt-get update && \
	  $(SUDO) apt-get install --yes --no-install-recommends mesa-vulkan-drivers libvulkan1; }

gpu: $(VENV)/stamp-dev ## run the GPU set on this machine's GPU; results go to docs/results
	$(BIN)/python -m pyc_mlir.tools.pyc_bench gpu

clean: ## remove what builds and tests made (.venv stays)
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
	find test/lit -name Output -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "PyC needs Python 3.11 or newer: name one with 'make PYTHON=python3.12 ...'"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/stamp-%: pyproject.toml | $(BIN)/python
	@echo "== installing PyC and its '$*' packages into $(VENV), which takes some minutes"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

STANDINS := flint z3 torch jax jax/numpy jax/scipy sqlalchemy sqlalchemy/dialects \
  sqlalchemy/schema distributed uvicorn starlette $(addprefix starlette/,applications exceptions requests responses routing)

# For pyright (see pyproject.toml): the four folders as the one package that they install as, and
# stand-ins for frameworks, whose names are all Any. They hide what is installed, so that a
# checkout with frameworks and one without them get the same answers.
typing:
	@mkdir -p build/typing/pyc_mlir
	@ln -sfn $(addprefix ../../../,dialects pipelines tools \
	  $(filter-out %/__pycache__,$(wildcard pyc_mlir/*))) build/typing/pyc_mlir/
	@for name in $(STANDINS); do \
	  mkdir -p build/typing/$$name; \
	  printf 'from typing import Any\n\ndef __getattr__(name: str) -> Any: ...\n' \
	    >build/typing/$$name/__init__.pyi; done
