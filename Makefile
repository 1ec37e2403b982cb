# Vivace. `make` prints the targets. VENV is made and filled when it is missing.
VENV ?= .venv
PYTHON ?= python3
SIZE ?= small
BIN = $(VENV)/bin
# An index for torch, such as https://download.pytorch.org/whl/cpu, when pip's own choice is too large.
TORCH_INDEX ?=
MODEL ?= smollm2
# Where other engines are: arguments of benchmarks/peers.py.
PEERS ?=
# Folder of llama.cpp's programs for prove-quality and prove-cold, if they are not on PATH.
LLAMA ?=
PROMPT ?= What is the capital of France?

PROOFS = readme tokens perplexity quality stories embeddings oracle scheduler identities speculation clients http soak size dense ops encoders memory cold speed context

.DEFAULT_GOAL := help
.PHONY: help install answer examples test tiny oracle bench bench-ops bench-engine bench-peers bench-tables lint types docs size tiny-models $(addprefix prove-,$(PROOFS)) prove

help: ## print the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16
	@echo "prove-NAME      show a claim, SIZE=small|full, NAME in: $(PROOFS)"

RUN_STAMP = $(VENV)/.vivace-run
TEST_STAMP = $(VENV)/.vivace-test
SOURCES = pyproject.toml CMakeLists.txt $(shell find src -type f -not -name '*.pyc' -not -name '*.so')

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	@if [ -n "$(TORCH_INDEX)" ]; then $(BIN)/python -m pip install --quiet 'torch>=2.8,<2.14' --index-url $(TORCH_INDEX); fi

$(RUN_STAMP): $(SOURCES) | $(BIN)/python
	@echo "installing into $(VENV) (about a minute) ..."
	$(BIN)/python -m pip install --quiet .
	@touch $@

$(TEST_STAMP): $(SOURCES) | $(BIN)/python
	@echo "installing with the test extra into $(VENV) (a few minutes) ..."
	$(BIN)/python -m pip install --quiet '.[test]'
	@touch $(RUN_STAMP) $@

install: $(TEST_STAMP) ## install with the test extra into VENV

answer: $(RUN_STAMP) ## install, then ask the default model: make answer PROMPT="..."
	$(BIN)/vivace run smollm2 "$(PROMPT)"

test: $(TEST_STAMP) ## install with the test extra, then run every test in groups, with durations
	$(BIN)/python -m tools.run_tests

tiny: $(TEST_STAMP) ## one tiny case of every verb, under a minute
	$(BIN)/python -m pytest -q tests/test_tiny.py

oracle: $(TEST_STAMP) ## every model against the library that published it
	$(BIN)/python -m pytest -q tests/oracle

bench: bench-ops bench-engine bench-peers ## every benchmark, SIZE=small|full

bench-ops: $(TEST_STAMP) ## every operation, each implementation, beside the machine's ceilings
	$(BIN)/python -m benchmarks.ops --size $(SIZE)

bench-engine: $(TEST_STAMP) ## prompts, streams, first token, memory beside the ceilings: make bench-engine MODEL=smollm2
	$(BIN)/vivace bench engine $(MODEL) $(if $(filter full,$(SIZE)),--repeats 7 --json benchmarks/results/engine-$(notdir $(basename $(MODEL))).json,--repeats 1 --tokens 16)

bench-peers: $(TEST_STAMP) ## other engines beside Vivace: make bench-peers PEERS="--llama FOLDER --openvino PYTHON"
	$(BIN)/python -m benchmarks.peers $(MODEL) --size $(SIZE) $(PEERS)

bench-tables: $(TEST_STAMP) ## write the tables of README.md and benchmarks/README.md from benchmarks/results
	$(BIN)/python -m tools.bench_tables

lint: $(TEST_STAMP) ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(TEST_STAMP) ## mypy
	$(BIN)/mypy

examples: $(TEST_STAMP) ## run every example
	$(BIN)/python -m tools.run_examples

docs: $(TEST_STAMP) ## write docs/reference from the code
	$(BIN)/python -m tools.docs

size: $(TEST_STAMP) ## files and code lines by folder
	$(BIN)/python -m tools.size

tiny-models: $(TEST_STAMP) ## train the tiny models of tests/assets again
	$(BIN)/python -m tools.make_tiny llama tests/assets/tiny-llama
	$(BIN)/python -m tools.make_tiny gemma3 tests/assets/tiny-gemma3

prove: $(addprefix prove-,$(PROOFS)) ## every claim, SIZE=small|full

prove-scheduler: $(TEST_STAMP)
	$(BIN)/python -m tests.engine.prove_scheduler --size $(SIZE)

prove-clients prove-http prove-soak: prove-%: $(TEST_STAMP)
	$(BIN)/python -m tests.serve.prove_$* --size $(SIZE)

prove-identities prove-speculation: prove-%: $(TEST_STAMP)
	$(BIN)/python -m tests.identities.prove_$* --size $(SIZE)

prove-oracle: $(TEST_STAMP)
	$(BIN)/python -m tests.oracle.prove_oracle --size $(SIZE)

# PEERS="--onnxruntime PYTHON" names a Python that has onnx and onnxscript too.
prove-encoders: $(TEST_STAMP)
	$(BIN)/python -m tests.real.prove_encoders --size $(SIZE) $(PEERS)

prove-tokens prove-perplexity prove-stories prove-embeddings: prove-%: $(TEST_STAMP)
	$(BIN)/python -m tests.real.prove_$* --size $(SIZE)

prove-dense prove-ops: prove-%: $(TEST_STAMP)
	$(BIN)/python -m tests.benchmarks.prove_$* --size $(SIZE)

prove-quality: $(TEST_STAMP)
	$(BIN)/python -m tests.real.prove_quality --size $(SIZE) $(if $(LLAMA),--llama $(LLAMA))

prove-memory: $(TEST_STAMP)
	$(BIN)/python -m tests.weights.prove_memory --size $(SIZE)

prove-cold: $(TEST_STAMP)
	$(BIN)/python -m tests.cli.prove_cold --size $(SIZE) $(if $(LLAMA),--llama $(LLAMA)/llama-cli)

prove-context: $(TEST_STAMP)
	$(BIN)/python -m tests.lab.prove_context --size $(SIZE)

prove-readme prove-size: prove-%: $(TEST_STAMP)
	$(BIN)/python -m tests.architecture.prove_$* --size $(SIZE)

prove-speed: $(TEST_STAMP)
	$(BIN)/python -m tests.benchmarks.prove_speed --size $(SIZE) $(if $(PEERS),--peers "$(PEERS)")
