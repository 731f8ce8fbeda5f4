# Every command of the project. `make` alone prints them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
WORKERS ?= 2
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help demo test check bench drills docs ci clean

help: ## Print this list
	@grep -hE '^[a-z]+:.*?## ' $(MAKEFILE_LIST) | awk -F ':.*?## ' '{printf "  make %-8s %s\n", $$1, $$2}'

demo: $(VENV)/.core ## Run the main job: orders become reservations, each once, while a worker is killed
	$(BIN)/settled demo

test: $(VENV)/.dev ## Run all tests
	$(PYTEST) -n $(WORKERS) --dist loadgroup tests

check: $(VENV)/.dev ## Types, style, import direction
	$(BIN)/ruff format --check src tests bench examples
	$(BIN)/ruff check src tests bench examples
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev ## Measure against hand-written floors, side by side; writes bench/results.json
	$(BIN)/python -m bench

drills: $(VENV)/.dev ## Kill real processes in every window, thousands of times
	$(BIN)/python -m settled.drills.campaign --full

docs: $(VENV)/.dev ## Write the generated pages of docs/
	$(BIN)/python -m settled.drills.pages docs

ci: check test ## What CI runs

clean: ## Remove what make made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "settled needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --editable '.[postgres,kafka,rabbitmq,dev]'
	@touch $@ $(VENV)/.core
