# One environment in .venv, holding exactly the lists of requirements/ that its stamps name; they make the second run
# instant. PROFILE: local, cpu or gpu. What has more has a stamp for the less that is in it, too.
profile := $(or $(PROFILE),cpu)
PYTHON  ?= python3
UV      := 0.13.8
py      := .venv/bin/python
uv      := .venv/bin/uv
has     := .venv/.ready-
tested  := $(has)$(profile)-test

# uv does not read pip's settings: a folder of wheels that pip was given is handed on. Without one, the CPU build
# of torch comes from PyTorch's own index. Both at once contradict each other, so it is one or the other.
ifdef PIP_FIND_LINKS
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
else ifneq ($(profile),gpu)
export UV_TORCH_BACKEND ?= cpu
endif

.PHONY: help setup eval eval-llm bench quick test test-all test-ray drill lint format lock schemas docs wheel clean

help:            ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST)

setup: $(has)$(profile)  ## .venv without the tools of tests (PROFILE=local, cpu or gpu; default cpu)

eval: $(has)$(or $(PROFILE),local) ## the main job: an invented dataset, answered and scored on a local Ray; no model download
	@RAY_ADDRESS=local $(py) jobs/eval.py $(ARGS)

llm := smollm2-135m-instruct
eval-llm: $(has)$(profile) ## the same questions by a language model of 135M (a download of 93 MB), next to `eval` without one
	@$(py) -m raypipe models fetch $(llm)
	@RAY_ADDRESS=local $(py) jobs/eval.py local --rule words --out out/llm/local $(ARGS)
	@RAY_ADDRESS=local $(py) jobs/eval.py rag --llm $(llm) --rule words --out out/llm/rag $(ARGS)
	@$(py) -m raypipe compare out/llm/local out/llm/rag

bench: $(tested)  ## speed next to other libraries, 20 minutes alone on two cores; writes the table of docs/performance.md
	@$(py) -m raypipe bench --record $(ARGS)

quick: $(tested)  ## tests that need neither Ray nor an engine: a minute
	@$(py) tests/support/run.py --quick $(ARGS)

test: $(tested)   ## the tests, as CI runs them; ARGS="..." are pytest's
	@$(py) tests/support/run.py $(ARGS)

test-all: $(tested) ## all tests, with the kills, races and comparisons that take long
	@$(py) tests/support/run.py --all $(ARGS)

# The pinned lists with another Ray in them: what pyproject.toml allows beyond the pin is tested so, oldest and newest.
other := .venv-ray-$(RAY)
test-ray: $(tested) ## tests that start Ray, with another Ray (RAY=2.59.0), in an environment of its own
	@test -n "$(RAY)" || { echo "expected RAY, a version: make test-ray RAY=2.59.0" >&2; exit 2; }
	@$(uv) venv --quiet --allow-existing --python $(py) $(other)
	@{ sed '/^ray==/,/[0-9a-f]$$/d' requirements/$(profile).txt; echo 'ray==$(RAY)'; } > $(other)/requirements.txt
	@$(uv) pip sync --quiet --python $(other) $(other)/requirements.txt requirements/test.txt
	@$(uv) pip install --quiet --python $(other) --no-deps --editable .
	@$(other)/bin/python -m pytest -p no:xdist -m "ray and not drill" $(ARGS)

# Each kills something that a run depends on, feeds it what is broken, or puts a defect back that a test must catch;
# prints JSON lines, and fails unless everything came back or was caught.
DRILLS := drill.py crash.py once.py "kills.py --kills 20" mutants.py fuzz.py "nodes.py --drills 20" \
	"streamed.py --gpus 16 --lose 8 --tasks 80 --seconds 14" \
	"serve_drill.py --requests 2000" "faults.py --faults 1000" "defects.py --json" \
	"forget.py --sources 20" submitted.py coverage.py card.py

drill: $(tested)  ## kill engines, drivers, workers, nodes and replicas while they work: an hour or more (docs/reliability.md)
	@for drill in $(DRILLS); do echo "$$drill" >&2; $(py) bench/drills/$$drill || exit 1; done

lint: $(tested)   ## ruff (lint, format) and mypy, as in pre-commit and CI
	$(py) -m ruff check .
	$(py) -m ruff format --check .
	$(py) -m mypy

format: $(tested) ## let ruff rewrite what it can
	$(py) -m ruff check --fix .
	$(py) -m ruff format .

schemas: $(tested) ## docs/schemas, from the classes of what commands print
	$(py) tests/support/outputs.py

docs: $(tested)   ## out/site, from docs/, the README and docstrings; a broken link fails it
	@NO_MKDOCS_2_WARNING=1 $(py) -m mkdocs build --strict --quiet && echo "out/site/index.html; its search works where it is served: python -m http.server -d out/site"

# $(1): the lists. The package's own byte code is written too: where PYTHONDONTWRITEBYTECODE is set, each start and
# each worker would compile all modules again.
define sync
	@$(py) -c 'import sys; sys.exit(sys.version_info[:2] < (3, 11))' 2>/dev/null || $(PYTHON) -m venv --clear .venv
	@$(py) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("raypipe needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	@echo "Setting up .venv ($(@:$(has)%=%)), once: half a minute from a warm package cache, some minutes from a cold one"
	@rm -f $(has)*
	@$(py) -m pip --version >/dev/null 2>&1 || $(py) -m ensurepip >/dev/null
	@$(py) -m pip install --quiet --disable-pip-version-check uv==$(UV)
	@$(uv) pip sync --quiet --python $(py) --compile-bytecode $(1)
	@$(uv) pip install --quiet --python $(py) --no-deps --editable .
	@$(py) -m compileall -q src
	@touch $(has)local $(has)$* $@
endef

$(has)%-test: pyproject.toml requirements/%.txt requirements/test.txt
	$(call sync,requirements/$*.txt requirements/test.txt)

$(has)%: pyproject.toml requirements/%.txt
	$(call sync,requirements/$*.txt)

.PRECIOUS: $(has)%-test $(has)%

compile = $(uv) pip compile --quiet --no-annotate --generate-hashes --custom-compile-command 'make lock' \
	--python-version 3.11 --python-platform x86_64-manylinux_2_28

# Each pin has the digests of its files, but a CPU build of torch: the folder or index that it comes from has others for
# each Python. One pin per package over all lists: `local` and the tools take those of `cpu`, `gpu` those of the tools. The GPU list
# is compiled without sight of a folder of CPU wheels, else it would pin torch==...+cpu.
lock:            ## raise the pins in requirements/
	@test -x $(uv) || { $(PYTHON) -m venv .venv && $(py) -m pip install --quiet uv==$(UV); }
	$(compile) --upgrade --extra cpu --excludes requirements/cpu.exclude.txt pyproject.toml -o requirements/cpu.txt
	$(compile) --extra local --constraint requirements/cpu.txt pyproject.toml -o requirements/local.txt
	$(compile) --group test --constraint requirements/cpu.txt -o requirements/test.txt
	sed -i '/+cpu \\$$/,/[0-9a-f]$$/{s/ \\$$//;/--hash/d}' requirements/cpu.txt requirements/local.txt requirements/test.txt
	env -u UV_TORCH_BACKEND -u UV_FIND_LINKS $(compile) --upgrade --extra gpu --constraint requirements/test.txt \
		pyproject.toml -o requirements/gpu.txt

wheel: $(has)$(profile) ## dist/raypipe-*.whl
	$(uv) build --quiet --wheel

clean:           ## remove .venv, out and dist
	rm -rf .venv .venv-ray-* out dist
