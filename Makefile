# From a fresh clone, with Python 3.11, python3-venv and build-essential: `make demo` and `make test`.
# Everything goes into $(VENV); nothing outside this folder is changed. `make test ROS=jazzy` uses the wheels of ROS 2
# Jazzy instead of Kilted's, in an environment beside it.

SECONDS ?= 30
ROS     ?= kilted
VENV    ?= $(if $(filter kilted,$(ROS)),.venv,.venv-$(ROS))
PYTHON  ?= python3
REPORT  ?= demo_report.json
PYTEST  ?=

BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip --quiet --disable-pip-version-check
TOOLS   := $(VENV)/.tools
STAMP   := $(VENV)/.installed
PINS    := $(VENV)/constraints.txt
SOURCES := CMakeLists.txt package.xml setup.py $(wildcard cmake/* config/* launch/* msg/* scripts/* src/kernels/*)

# Libraries of a sourced ROS or of another environment's ROS wheels must not leak into ours.
ifneq ($(AMENT_PREFIX_PATH)$(_ROS_WHEELS_BOOTSTRAP_COMPLETE),)
unexport AMENT_PREFIX_PATH CMAKE_PREFIX_PATH LD_LIBRARY_PATH PYTHONPATH _ROS_WHEELS_BOOTSTRAP_COMPLETE
endif
unexport PYTHONHOME VIRTUAL_ENV

.DEFAULT_GOAL := help
.PHONY: help demo test lint colcon install clean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*  ## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

demo: $(STAMP)  ## run the simulated robot and the node for SECONDS=30, write demo_report.json
	@$(BIN)/oxygen demo --seconds $(SECONDS) --report $(REPORT)

test: $(STAMP)  ## run all tests (PYTEST="-k name" for some)
	@$(BIN)/python -m pytest $(PYTEST)

lint: $(STAMP)  ## check the style and the types
	@$(BIN)/ruff check .
	@$(BIN)/mypy

install: $(STAMP)  ## create the environment and build, when something changed

# torch first and pinned: the largest download fails first, and nothing later may exchange it. The ROS build tools go
# into the same environment (no build isolation), so that the distribution that runs the messages also generates them.
$(TOOLS): constraints.txt pyproject.toml cmake/ros_pins.py
	@$(PYTHON) -c 'import sys, platform as p; \
	  sys.exit(not ((3, 11) <= sys.version_info < (3, 14) and (p.system(), p.machine()) == ("Linux", "x86_64")))' \
	  || { echo 'The pinned wheels need Linux on x86_64 and Python 3.11 to 3.13: make PYTHON=python3.11 ...'; exit 1; }
	@command -v g++ >/dev/null || { echo 'The messages need a C++ compiler: apt install build-essential'; exit 1; }
	@test -x $(BIN)/python || { echo '-- environment: $(VENV)'; $(PYTHON) -m venv $(VENV); }
	@$(PYTHON) cmake/ros_pins.py $(ROS) > $(PINS)
	@echo '-- torch (a large download the first time)'
	@$(PIP) install -c $(PINS) torch
	@echo '-- ROS 2 build tools ($(ROS))'
	@$(PIP) install -c $(PINS) $$($(PYTHON) cmake/ros_pins.py $(ROS) --packages)
	@touch $@

$(STAMP): $(TOOLS) $(SOURCES)
	@echo '-- oxygen_ros: its dependencies, its messages'
	@$(PIP) install -c $(PINS) --no-build-isolation -e '.[test]'
	@touch $@

colcon: $(STAMP)  ## build and test in a colcon workspace below build/, as ROS users do
	@$(PIP) install -c $(PINS) colcon-common-extensions ros-ament-cmake-pytest
	@mkdir -p build/ws/src && ln -sfn $(CURDIR) build/ws/src/oxygen_ros
	@. $(BIN)/activate && cd build/ws && export AMENT_PREFIX_PATH=$$VIRTUAL_ENV CMAKE_PREFIX_PATH=$$VIRTUAL_ENV && \
	  colcon build --cmake-args -DCMAKE_PROJECT_INCLUDE=$(CURDIR)/cmake/ros_wheels.cmake && \
	  . install/setup.sh && colcon test --event-handlers console_direct+ --return-code-on-test-failure

clean:  ## remove what was built (not the environment: rm -r .venv)
	@rm -rf build install log *.egg-info oxygen_ros/msg oxygen_ros/*.so
	@find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
