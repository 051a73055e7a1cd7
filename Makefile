# Two commands: `make demo` and `make test`. Each makes .venv and installs by itself, once.
PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3,$(shell $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(p))))
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test results types clean install
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

# The studies of docs/results: about three hours on 2 cores. `make result-mqar` makes one of them.
RESULTS := atlas_figure6 capacity mqar mad_recall mad_copying recall niah atlas_models \
	atlas_table6 context_window newton_schulz_steps miras_bias miras_retention memory_written learnability_axes
PAPER_atlas_table6 := --paper atlas/table6

results: $(addprefix result-,$(RESULTS))

result-%: $(STAMP)
	$(BIN)/ablate run $*
	$(BIN)/ablate report $* --format md -o docs/results/$*.md --figures docs/results/figures $(PAPER_$*)

clean:
	rm -rf $(VENV) build *.egg-info
