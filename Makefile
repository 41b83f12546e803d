# make demo: the main job on a fresh machine. make test: what CI runs. make docs: the generated pages.
# Each makes its own environment first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test slow lint bench docs clean

demo: $(VENV)/.run
	$(BIN)/python run.py compare --config=configs/digits_compare.py

test: $(VENV)/.dev lint
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

slow: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --slow -m slow

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(VENV)/.run
	$(BIN)/python run.py bench

docs: $(VENV)/.run
	$(BIN)/python run.py list --markdown=docs/reference
	$(BIN)/python run.py reproduce

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("ddl needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; pass another: make demo PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The package itself is installed too, so that `import ddl` works from any folder with this environment.
$(VENV)/.run: requirements.txt constraints.txt pyproject.toml | $(VENV)/.made
	$(PIP) -r requirements.txt
	$(PIP) --no-deps -e .
	@touch $@

$(VENV)/.dev: requirements-dev.txt requirements.txt constraints.txt pyproject.toml | $(VENV)/.made
	$(PIP) -r requirements-dev.txt
	$(PIP) --no-deps -e .
	@touch $@ $(VENV)/.run

clean:
	rm -rf $(VENV)
