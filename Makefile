# make quickstart      train a small model on this machine
# make test            lint, types, import contracts and all tests that this machine can run
# make lint            the first three of these
# make grafana-smoke   start Prometheus, Grafana (both by Docker) and a run; query every panel
# make lock            pin what .venv holds
# make install-gpu     the extra gpu (GPU_EXTRA=gpu13 for CUDA 13), and what `doctor --gpu` says of it
# make test-gpu        NCCL on the GPUs of this machine, without Ray; prints one JSON object
# make test-cupy       tests of cupy's NCCL, in a folder of their own; needs no GPU
#
# PYTHON is the interpreter that .venv is made from. A torch that .venv already holds is kept if it
# fits, so a CPU or CUDA build of your choice goes in first (see README.md).

PYTHON ?= python3
PYTEST_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PIP_INSTALL := $(PIP) install $(if $(CI),--quiet)
TORCH_FITS := import importlib.metadata as m, sys; \
  sys.exit(tuple(map(int, m.version('torch').split('.')[:2])) < (2, 9))
NOW := $(shell date +%Y%m%d-%H%M%S)
RUN_DIR ?= runs/quickstart-$(NOW)
QUICKSTART_DATA := runs/quickstart-data
STDLIB := import sysconfig; print(sysconfig.get_path('stdlib'))

.DELETE_ON_ERROR:
.PHONY: quickstart test lint lock install install-dev install-gpu test-gpu test-cupy grafana-smoke

quickstart: install $(QUICKSTART_DATA)/manifest.json
	$(BIN)/disagmoe train --config configs/quickstart.toml --run-dir $(RUN_DIR)
	@echo "Result in $(RUN_DIR)/result.json, one line per step in $(RUN_DIR)/metrics.jsonl."

# Real text that every machine has: the standard library without its tests, and without what else is
# installed in its folder. Its empty __init__.py files are no documents. The manifest is written last:
# its presence says that the data is complete.
$(QUICKSTART_DATA)/manifest.json: | $(VENV)/.installed
	stdlib="$$($(BIN)/python -c "$(STDLIB)")" && \
	$(BIN)/disagmoe data prepare --out $(QUICKSTART_DATA) --tokenizer bpe --vocab-size 4096 \
	  --on-bad-record skip --input "$$stdlib/**/*.py" --exclude "$$stdlib/test/*" \
	  "$$stdlib/*/test/*" "$$stdlib/*/tests/*" "$$stdlib/site-packages/*" "$$stdlib/dist-packages/*"

# What starts processes or wants the machine to itself runs last, one test at a time; and so does what
# PYTEST_ARGS chooses.
APART := ray or gloo or net or prometheus or browser or gpu
test: lint
ifeq ($(strip $(PYTEST_ARGS)),)
	$(BIN)/python -m pytest --numprocesses=auto --dist=loadfile -m "not ($(APART))"
	$(BIN)/python -m pytest -m "$(APART)"
else
	$(BIN)/python -m pytest $(PYTEST_ARGS)
endif

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy scripts
	$(BIN)/lint-imports --no-logo

grafana-smoke: install $(QUICKSTART_DATA)/manifest.json
	$(BIN)/python scripts/grafana_smoke.py

# Set-up. The stamps make a second call do nothing, so an installed checkout works offline.

install: $(VENV)/.installed

install-dev: $(VENV)/.installed-dev

# On CUDA 12 torch is replaced by a build for it, unless the one that is there fits.
GPU_EXTRA ?= gpu
install-gpu: install
	$(PIP_INSTALL) --no-build-isolation --editable ".[$(GPU_EXTRA)]"
	$(BIN)/disagmoe doctor --gpu

test-gpu:
	@$(BIN)/python scripts/test_gpu.py

# Half a gigabyte beside what every machine needs, hence apart from .venv.
CUPY_TESTS := tests/unit/transport/test_nccl_library.py tests/ray/test_nccl_id.py
.venv-cupy/.installed: tests/nccl/requirements.txt | $(BIN)/python
	rm -rf .venv-cupy
	$(PIP_INSTALL) --target .venv-cupy --requirement $<
	@touch $@
test-cupy: install-dev .venv-cupy/.installed
	DISAGMOE_TESTS_REQUIRE=cupy PYTHONPATH=.venv-cupy $(BIN)/python -m pytest $(CUPY_TESTS)

lock: install-dev
	$(BIN)/python scripts/lock.py

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: $(PYTHON) must be Python 3.11 or newer; name another one with PYTHON=..." >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "make: $(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)

# torch goes in alone and first: a package that depends on it would bring the newest build instead.
$(VENV)/.installed: requirements.lock pyproject.toml | $(BIN)/python
	@$(BIN)/python -c "$(TORCH_FITS)" 2>/dev/null || \
	  $(PIP_INSTALL) --constraint requirements.lock "$$(grep '^torch==' requirements.lock)"
	@grep -v '^torch==' requirements.lock > $(VENV)/requirements.txt
	$(PIP_INSTALL) --requirement $(VENV)/requirements.txt
	$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed-dev: requirements-dev.lock $(VENV)/.installed
	$(PIP_INSTALL) --requirement requirements-dev.lock
	@touch $@
