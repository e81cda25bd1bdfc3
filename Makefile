# The front door: `make help` lists what there is. Every step installs what it misses, configures,
# and builds what changed.
SHELL := /bin/bash
BUILD ?= build
CMAKE ?= cmake
JOBS ?= $(shell nproc)
# Further arguments of the configuration, for example CMAKE_FLAGS=-DSHARPI_WERROR=ON.
CMAKE_FLAGS ?=
PREFIX ?= /usr/local

# CTest comes with the CMake in use.
CTEST = $(if $(findstring /,$(CMAKE)),$(dir $(CMAKE))ctest,ctest)
# Tests that take minutes run a part, which the commit's hash chooses: SHARPI_TEST_TURN=all make test runs
# everything.
turn = SHARPI_TEST_TURN=$$(tools/ci/turn.sh)
packages = @CMAKE="$(CMAKE)" tools/setup/packages.sh
# Where there is a GPU and a compiler for it, the CUDA tier is built too, for that GPU.
has_gpu := $(shell nvidia-smi -L > /dev/null 2>&1 && \
  { command -v nvcc || ls /usr/local/cuda/bin/nvcc; } 2> /dev/null)
cuda = $(if $(has_gpu),-DSHARPI_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native)
configure = @mkdir -p "$(BUILD)" && \
  { $(CMAKE) --preset release -B "$(BUILD)" $(cuda) $(flags) $(CMAKE_FLAGS) > "$(BUILD)/configure.log" 2>&1 || \
    { cat "$(BUILD)/configure.log"; exit 1; }; }
build = @$(CMAKE) --build "$(BUILD)" -j $(JOBS)

# The question is the last line of the prompt, its answer lies far back in the text before it.
demo = -m tests/fixtures/tiny-qwen3-q8_0.gguf -f examples/demo_prompt.txt --chat --temp 0 -n 32 \
  --expect 97697
# The same with a hybrid model, from an eighth of its KV rows.
demo_compact = -m tests/fixtures/tiny-qwen35-q8_0.gguf -f examples/compact_prompt.txt \
  --budget 256 --expect 80293

.PHONY: help demo chat serve test test-apart bench docs format check check-arm check-windows check-macos install wheel dist clean
.DEFAULT_GOAL := help

help:
	@echo "make demo     build, then answer questions with small models that lie in this tree"
	@echo "make chat     build, get SmolLM2 (93 MB, asks first), and talk with it"
	@echo "make serve    build a server with a page to chat on, and start it"
	@echo "make test     build everything and run the tests"
	@echo "make test-apart  the tests that compute for minutes: real models over a whole text"
	@echo "make bench    build and run the benchmarks"
	@echo "make docs     HTML documentation of sharpi.h in $(BUILD)/docs/html"
	@echo "make format   format the sources in place"
	@echo "make check    all that CI runs: tests, sanitizers, both compilers, documentation, ..."
	@echo "make check-arm  the library on aarch64: cross-built, run under qemu as four processors"
	@echo "make check-windows  sharpi.dll and programs: compiled by MinGW-w64, run under Wine"
	@echo "make check-macos  the library for macOS: compiled and linked, never run"
	@echo "make install  install to PREFIX ($(PREFIX))"
	@echo "make wheel    the Python package, with the library inside, in $(BUILD)/dist"
	@echo "make dist     packages: archive, .deb, wheel, NuGet, crates, Go module, in $(BUILD)/dist"
	@echo "make clean    remove the build folders"

# A fresh folder for what only users need has no tests, and so needs no GoogleTest.
demo chat serve docs install wheel dist: flags = $(if $(wildcard $(BUILD)/CMakeCache.txt),,-DSHARPI_TESTS=OFF)
test test-apart bench: flags = -DSHARPI_TESTS=ON
bench: flags += -DSHARPI_BENCH=ON
install: flags += -DCMAKE_INSTALL_PREFIX="$(PREFIX)"

demo:
	$(packages) build
	$(configure)
	$(build) --target generate compact
	@echo "A text of $$(wc -w < examples/demo_prompt.txt) words, then: $$(tail -n 1 examples/demo_prompt.txt)"
	@"$(BUILD)/examples/generate" $(demo)
	@echo
	@echo "The KV cache of $$(wc -w < examples/compact_prompt.txt) words, compacted: $$(tail -n 1 examples/compact_prompt.txt)"
	@"$(BUILD)/examples/compact" $(demo_compact)

# SmolLM2 is so small that the rounding of `fast` arithmetic changes what it says: hence --exact.
# CHAT has further options of the program, for example CHAT="--system 'Be brief.' --temp 0".
CHAT ?=
chat:
	$(packages) build
	$(configure)
	$(build) --target chat
	@model=$$(tools/models/fetch.sh smollm2-135m) && exec "$(BUILD)/examples/chat" -m "$$model" --exact $(CHAT)

# SmolLM2 where `make chat` or tools/models/fetch.sh has fetched it, else a small model of this tree.
# SERVE has further options of the server, for example SERVE="--port 9000".
SERVE ?=
serve:
	$(packages) serve
	$(configure)
	$(build) --target server
	@model=$$(tools/models/fetch.sh smollm2-135m < /dev/null 2> /dev/null) || \
	  { model=tests/fixtures/tiny-qwen35-q8_0.gguf; \
	    echo "A small model that knows little but to find facts: ask it \"The code of ember is 97697. What is the code of ember?\""; \
	    echo "(tools/models/fetch.sh smollm2-135m gets one to talk with; 93 MB)"; }; \
	  exec "$(BUILD)/examples/server/server" --model "$$model" $(SERVE)

test:
	$(packages) test
	$(configure)
	$(build)
	@rm -rf "$(BUILD)/tests/results"
	@$(turn) $(CTEST) --test-dir "$(BUILD)" --output-on-failure -j $(JOBS) -LE 'apart|vulkan'; status=$$?; \
	  tools/ci/cases.sh "$(BUILD)" || status=1; "$(BUILD)/tests/list_fixtures"; exit $$status

test-apart:
	$(packages) test
	$(configure)
	$(build) --target perplexity_test
	@$(turn) $(CTEST) --test-dir "$(BUILD)" --output-on-failure -j $(JOBS) -L apart

bench:
	$(packages) bench
	$(configure)
	$(build)
	@tools/bench.sh "$(BUILD)"

docs:
	$(packages) docs
	$(configure)
	$(build) --target docs
	@echo "open $(BUILD)/docs/html/index.html"

format:
	$(packages) format
	@tools/ci/format.sh --fix

check:
	@.ci/run

# What is left by --limit goes on in the next call. ARM has further options, for example
# ARM="--processors max --suite matmul_test".
ARM ?=
check-arm:
	@tools/arm_check.sh $(ARM)

check-windows:
	@tools/windows_check.sh

check-macos:
	@tools/macos_check.sh

install:
	$(packages) build
	$(configure)
	$(build) --target sharpi sharpi_static
	@$(CMAKE) --install "$(BUILD)" --prefix "$(PREFIX)"
# The loader finds a library in /usr/local/lib through its cache alone.
	@if [ -z "$$DESTDIR" ] && [ "$$(id -u)" = 0 ]; then ldconfig; \
	else echo "if programs do not find libsharpi.so.1: sudo ldconfig, or LD_LIBRARY_PATH"; fi

# pip gets the build backend from PyPI, into a virtual environment of its own.
wheel:
	$(packages) wheel
	$(configure)
	$(build) --target sharpi_bundled
	@tools/wheel.sh "$(BUILD)"

# Packages whose tools are missing are skipped by name; docs/packages.md says what each needs.
dist:
	$(packages) wheel
	$(configure)
	$(build) --target sharpi sharpi_static sharpi_bundled
	@tools/dist/dist.sh "$(BUILD)"

clean:
	rm -rf build build-*
