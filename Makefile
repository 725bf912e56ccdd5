# Two commands: `make run` and `make test`. Each does all of its set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test quick lint clean

run: $(READY)
	$(BIN)/sordino run --baseline

test: $(READY) lint
	$(BIN)/python -m pytest -n 2

quick: $(READY)
	$(BIN)/python -m pytest -n 2 -m "not slow"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'Sordino needs Python 3.11 or newer')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check torch -c constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev]" -c constraints.txt
	touch $(READY)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
