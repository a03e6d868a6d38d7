# slurm_recovery: `make demo` shows it, `make test` tests it. Both run on a bare Debian machine, as root.

PYTHON ?= /usr/bin/python3
VENV := .venv
TRAINING := .venv-training
RUN := $(VENV)/bin/python
SUITES ?= testing
# Test files that run side by side: the clusters mostly wait.
JOBS ?= 3
export PYTHON

.PHONY: demo test lint test-unit test-store test-cluster test-training test-releases spank bench fuzz manual clean

# `make demo` installs what is missing, boots a private cluster and shows a failed job come back.
demo: root packages $(VENV)/installed
	@$(RUN) -m tests.demo

# `make test` runs all tests of this machine's Slurm release.
test: root packages-test lint test-unit test-store test-cluster test-training

lint: packages-test $(VENV)/installed spank
	$(VENV)/bin/ruff check slurm_recovery tests epilog prolog setup.py
	$(VENV)/bin/mypy

# The SPANK plugin, against this machine's Slurm; every warning is an error.
spank: packages-test
	$(MAKE) -C spank_hooks

test-unit: packages-test $(VENV)/installed
	$(RUN) -m pytest -q -n $(JOBS) -m "not timing" tests/unit
	$(RUN) -m pytest -q -m timing tests/unit

test-store: packages-test $(VENV)/installed
	$(RUN) -m pytest -q -n $(JOBS) --dist loadfile tests/store

test-cluster: root packages-test $(VENV)/installed
	$(RUN) -m pytest -q --durations=8 -n $(JOBS) --dist loadfile -m "not timing" tests/cluster
	$(RUN) -m pytest -q --durations=8 -m timing -s tests/cluster

# Real training software, killed while it writes a checkpoint.
test-training: root packages-test $(VENV)/installed $(TRAINING)/installed
	$(RUN) -m pytest -q -n 2 --dist loadgroup tests/training

# The cluster tests on other Slurm releases, each in a folder made by debootstrap: SUITES="trixie testing".
test-releases: root packages-releases
	tests/releases.sh $(SUITES)

# Figures, printed: restart time against Slurm's own, the hook's cost, the scanner's speed, how often answers are right.
bench: root packages packages-bench $(VENV)/installed
	$(RUN) -m tests.bench

# Attacks on scanner and judgement, for SECONDS. Needs atheris's wheel (x86_64).
SECONDS ?= 300
fuzz: $(VENV)/installed
	$(RUN) -m pip install -q --disable-pip-version-check 'atheris>=3,<4'
	$(RUN) -m tests.fuzz $(SECONDS)

# The pages and samples that are made from the code.
manual: $(VENV)/installed
	$(RUN) -m slurm_recovery.cli.main manual --output conf/man
	$(RUN) -m slurm_recovery.cli.main config --sample > conf/recovery.conf.example

.PHONY: root packages packages-test packages-releases packages-bench
root:
	@[ "$$(id -u)" = 0 ] || { echo "make: run this as root: it boots Slurm's daemons in a folder of its own" >&2; exit 1; }
packages:
	@tests/install_packages.sh
packages-test:
	@tests/install_packages.sh test
packages-releases:
	@tests/install_packages.sh releases
packages-bench:
	@tests/install_packages.sh bench

$(VENV)/installed: setup.py pyproject.toml slurm_recovery/VERSION | packages
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install -q --disable-pip-version-check -e '.[test]'
	@touch $@

$(TRAINING)/installed: tests/training/requirements.txt | packages
	$(PYTHON) -m venv $(TRAINING)
	$(TRAINING)/bin/python -m pip install -q --disable-pip-version-check -r tests/training/requirements.txt
	@touch $@

clean:
	$(MAKE) -C spank_hooks clean
	rm -rf $(VENV) $(TRAINING) .releases build *.egg-info
