# Everything happens in .venv, made on first use. PYTHON may name another interpreter (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo deploy-demo test lint test-slow test-gpu bench clean

help:
	@echo "make demo       train FedAvg and FedAvg + VHL on handwritten digits and compare them (minutes)"
	@echo "make deploy-demo  the same over three sites on this machine, with TLS; one dies on the way (minutes)"
	@echo "make test       the whole test suite, with linting and type checks"
	@echo "make test-slow  the tests that take minutes"
	@echo "make test-gpu   the tests that need a GPU; their report goes to benchmarks/results/gpu-tests.txt"
	@echo "make bench      the engine against a plain PyTorch loop, on this machine"

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "vhl needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

demo: $(READY)
	@rm -rf runs/demo
	$(BIN)/vhl sweep examples/demo.toml objective=plain,vhl --name demo

deploy-demo: $(READY)
	$(BIN)/python examples/deploy_demo.py

test: $(READY) lint
	$(BIN)/python -m pytest -q -n 2 -m "not slow"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache

test-slow: $(READY)
	$(BIN)/python -m pytest -q -m slow

test-gpu: $(READY)
	@mkdir -p benchmarks/results
	(git rev-parse HEAD; $(BIN)/python -m pytest -q tests/rounds/test_gpu.py tests/training/test_kernels.py \
	  tests/models/layers/test_kernels.py tests/test_chance.py) | tee benchmarks/results/gpu-tests.txt

bench: $(READY)
	$(BIN)/python benchmarks/cpu_loop.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
