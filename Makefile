# Three commands do all set-up on a fresh machine: `make chat`, `make serve` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH_BIN := .venv-torch/bin
MODEL := smollm2-135m

.PHONY: chat serve test lint types imports check test-slow test-browser test-soak test-asan test-torch bench peers format clean

chat: $(VENV)/installed
	@$(BIN)/anchorstream chat $(MODEL)

serve: $(VENV)/serving
	@$(BIN)/anchorstream serve $(MODEL)

test: $(VENV)/developed
	$(BIN)/anchorstream pull $(MODEL)
	$(BIN)/python -m pytest

# ---- environments ----

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# What the installed package was built from: a change of any of it installs again.
SOURCES := pyproject.toml CMakeLists.txt $(shell find csrc src -type f -not -name '*.pyc')

$(VENV)/installed: $(SOURCES) | $(VENV)/bin/python
	@echo "installing anchorstream into $(VENV) (a minute, once)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e .
	@touch $@

$(VENV)/serving: $(VENV)/installed
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e ".[serve]"
	@touch $@

$(VENV)/developed: $(VENV)/installed
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e ".[dev]"
	@touch $@

.venv-torch/installed: $(SOURCES)
	$(PYTHON) -m venv .venv-torch
	$(TORCH_BIN)/python -m pip install -q --disable-pip-version-check torch==2.13.0 "transformers>=5,<6" accelerate sentencepiece protobuf
	$(TORCH_BIN)/python -m pip install -q --disable-pip-version-check ".[dev]"
	@touch $@

# ---- checks ----

lint: $(VENV)/developed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(shell find csrc tests -name '*.cpp' -o -name '*.h' -o -name '*.inl')

types: $(VENV)/developed
	$(BIN)/mypy

imports: $(VENV)/developed
	$(BIN)/lint-imports

check: test lint types imports

test-slow: $(VENV)/developed
	$(BIN)/python -m pytest -m slow

test-browser: $(VENV)/developed
	$(BIN)/python -m pytest -m browser

# Half an hour; ANCHORSTREAM_SOAK_SECONDS makes it shorter.
test-soak: $(VENV)/developed
	$(BIN)/python -m pytest -s -m soak

test-asan: $(VENV)/developed
	$(BIN)/python -m pip install -q scikit-build-core nanobind
	$(BIN)/python -m pytest -m asan

# torch and transformers live in an environment of their own: chatting must not need them
test-torch: .venv-torch/installed
	$(TORCH_BIN)/python -m pytest -m torch

format: $(VENV)/developed
	$(BIN)/ruff check --fix -q .
	$(BIN)/ruff format -q .
	$(BIN)/clang-format -i $(shell find csrc tests -name '*.cpp' -o -name '*.h' -o -name '*.inl')

# ---- benchmarks ----

peers: $(VENV)/developed
	$(BIN)/python benchmarks/setup_peers.py

bench: $(VENV)/developed
	$(BIN)/python benchmarks/core.py

clean:
	rm -rf $(VENV) .venv-torch build dist
