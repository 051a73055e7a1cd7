# Two commands: `make demo` and `make test`. Each makes .venv and installs by itself, once.
PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3,$(shell $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(p))))
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint types clean install
demo: $(STAMP)
	$(BIN)/ablate run quickstart

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -n 2 --dist loadfile

types: $(STAMP)
	bash tests/typecheck.sh $(abspath $(BIN))

install: $(STAMP)

$(STAMP): pyproject.toml setup.py constraints.txt
	@test -n "$(PYTHON)" || { echo "Ablate needs Python 3.11 or newer: install one, or run make PYTHON=/path/to/python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --quiet --upgrade 'pip>=26'
	@echo "Installing pinned packages into $(VENV): one to four minutes, once."
	$(BIN)/python -m pip install --quiet --quiet --no-compile -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info
