# Two commands: `make run` and `make test`. Each does all of its set-up. `make dist` builds a wheel and tries it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test quick lint docs dist clean

run: $(READY)
	$(BIN)/sordino run --baseline --audit

test: $(READY) lint
	$(BIN)/python -m pytest -n 2

quick: $(READY)
	$(BIN)/python -m pytest -n 2 -m "not slow"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2

# writes the documentation site into docs/_site, without network; a dead link or a page that is in no table of contents ends it
docs: $(READY)
	$(BIN)/sphinx-build -W --keep-going -q -b html -d $(VENV)/doctrees docs docs/_site

# builds a wheel, installs it into an environment of its own, away from the checkout, and runs it
dist:
	rm -rf dist .venv-dist
	$(PYTHON) -m venv .venv-dist
	.venv-dist/bin/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	.venv-dist/bin/pip install --quiet --disable-pip-version-check torch -c constraints.txt
	.venv-dist/bin/pip install --quiet --disable-pip-version-check dist/*.whl -c constraints.txt
	mkdir -p dist/trial
	cd dist/trial && ../../.venv-dist/bin/sordino run --rounds 2 --clients 5 --name trial
	cd dist/trial && ../../.venv-dist/bin/python ../../examples/own_model.py
	rm -rf .venv-dist

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'Sordino needs Python 3.11 or newer')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check torch -c constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev]" -c constraints.txt
	touch $(READY)

clean:
	rm -rf $(VENV) .venv-dist dist .pytest_cache .mypy_cache .ruff_cache docs/_site
