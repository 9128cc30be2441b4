# Everything runs from nothing: the first command of any target makes .venv.
PYTHON ?= python3
BIN := .venv/bin
export OPENBLAS_NUM_THREADS := 1

.PHONY: demo test test-slow test-oldest test-newest check format docs bench dist clean

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch .venv/ready

demo: .venv/ready
	$(BIN)/gpssm demo --out runs/demo

test: .venv/ready
	$(BIN)/pytest --numprocesses 2 --dist loadfile -m "not slow"

test-slow: .venv/ready
	$(BIN)/pytest -m slow

# The oldest versions that pyproject.toml allows, in an environment of their own; all tests but those of the site, of
# notebooks and of examples.
.venv-oldest/ready: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/pip install --quiet --upgrade pip
	.venv-oldest/bin/pip install --quiet --constraint constraints-oldest.txt --editable ".[test]"
	touch .venv-oldest/ready

test-oldest: .venv-oldest/ready
	.venv-oldest/bin/pytest --numprocesses 2 --dist loadfile -m "not slow" --ignore-glob "tests/test_[den]*.py"

# The newest versions there are: PYTHON=python3.13 has newer ones than PYTHON=python3.11.
.venv-newest/ready: pyproject.toml
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/pip install --quiet --upgrade --editable ".[test]"
	touch .venv-newest/ready

test-newest: .venv-newest/ready
	.venv-newest/bin/pytest --numprocesses 2 --dist loadfile -m "not slow" --ignore-glob "tests/test_[den]*.py"

check: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/pytest tests/test_layers.py

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# No page asks the network for anything; see tests/test_docs.py.
docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: .venv/ready
	$(BIN)/python benchmarks/density.py

# sdist and wheel, checked; the wheel is installed into an empty environment with the newest versions, where the command
# line runs without matplotlib and README's code with it. PYTHONS="python3.12 python3.13" tries other interpreters.
dist: .venv/ready
	$(BIN)/python tests/release/dist.py $(or $(PYTHONS),$(PYTHON))

clean:
	rm -rf dist .venv .venv-oldest .venv-newest .cache .pytest_cache .ruff_cache site
