# The front door. Each target first installs what is missing (tools/setup), then builds, then works.
# BUILD_JOBS=n limits the parallel compile jobs.
SHELL := /bin/bash
BUILD_JOBS ?= $(shell nproc)
RELEASE := build/release
TESSERA := $(RELEASE)/bin/tessera
# `run` and `bench` take what is built. A first time, where there is no NVIDIA GPU, they leave the CUDA kernels out: minutes of
# compiling for code that cannot run here.
LAB := $(if $(wildcard $(TESSERA) /dev/nvidiactl /dev/dxg),release,cpu)
LAB_TESSERA := build/$(LAB)/bin/tessera
PEERS := .venv-peers
PYTHON ?= python3 # with a PyTorch for GPUs, for peers-gpu

# A first configuration; afterwards Ninja runs CMake again by itself when a CMake file or a source list changes.
configure = test -f build/$(1)/build.ninja || cmake --preset $(1)

.DEFAULT_GOAL := help
.PHONY: help setup run build test wheel test-arm64 test-gpu test-gpu-model cuda-report bench asan tsan format lint docs clean fuzz peers-cpu peers-gpu

help: ## list the targets
	@printf 'usage: make <target>\n\n'
	@sed -n 's/^\([a-z0-9-]*\):.* ## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

setup: ## install what the build and the tests need
	@tools/setup test

run: $(LAB_TESSERA) ## the experiments on this machine, and a page about them: lab-results/; ARGS="..." adds options
	@$(LAB_TESSERA) lab $(ARGS)

bench: $(LAB_TESSERA) ## a longer sweep; ARGS="..." replaces its options
	@$(LAB_TESSERA) bench $(or $(ARGS),--algorithm standard,flash2 --seq 256,512,1024,2048,4096 --heads 8 \
	  --dim 64,128 --dtype fp32,bf16 --direction forward,backward)

peers-cpu: $(TESSERA) $(PEERS)/installed ## the CPU attention of four libraries against Tessera, with bars; ARGS="..." adds options
	@cmake --build --preset release --target tessera -j $(BUILD_JOBS)
	@$(PEERS)/bin/python benchmarks/peers_cpu.py $(ARGS)

peers-gpu: ## PyTorch on a GPU against Tessera, with bars; PYTHON=... has PyTorch, ARGS="..." adds options
	@tools/setup run
	@cmake --preset release -DTESSERA_CUDA=ON
	@cmake --build --preset release --target tessera -j $(BUILD_JOBS)
	@$(PYTHON) benchmarks/peers_gpu.py $(ARGS)

# PyTorch and its peers in an environment of their own: gigabytes that no other target needs. A peer that has no package for
# this machine is left out, and its rows say so.
$(PEERS)/installed: benchmarks/requirements-cpu.txt $(wildcard benchmarks/requirements-cpu-*.txt)
	@tools/setup test
	@python3 -m venv $(PEERS)
	@$(PEERS)/bin/pip install --quiet --disable-pip-version-check -r $<
	@for peer in $(filter-out $<,$^); do \
	  $(PEERS)/bin/pip install --quiet --disable-pip-version-check -r $$peer || echo "peers-cpu: $$peer could not be installed"; \
	done
	@touch $@

# Phony: Ninja knows better than Make whether anything is out of date.
COMMANDS := build/release/bin/tessera build/cpu/bin/tessera
.PHONY: $(COMMANDS)
$(COMMANDS): build/%/bin/tessera:
	@tools/setup run
	@$(call configure,$*)
	@cmake --build build/$* --target tessera_lab -j $(BUILD_JOBS)

build: ## build the library and the command (release)
	@tools/setup run
	@$(call configure,release)
	@cmake --build --preset release -j $(BUILD_JOBS)

test: ## everything that this machine can test: release, Python, debug, Clang, sanitizers, libFuzzer, GPU kernels in a model, Arm in an emulator, format
	@tools/setup python
	@BUILD_JOBS=$(BUILD_JOBS) tools/run-tests release debug clang asan tsan fuzz gpu-model arm64 format

test-arm64: ## the whole suite for 64-bit Arm, NEON and SVE, in an emulator: slow
	@tools/setup arm64
	@BUILD_JOBS=$(BUILD_JOBS) tools/run-tests arm64-full

test-gpu-model: ## every CUDA kernel on this machine, without a GPU: in the model of one
	@tools/setup test
	@BUILD_JOBS=$(BUILD_JOBS) tools/run-tests gpu-model-full

test-gpu: ## every test that needs a GPU, with compute-sanitizer; keeps a summary; ARGS="..." adds options
	@tools/setup python
	@cmake --preset release -DTESSERA_CUDA=ON -DTESSERA_TESTS=ON -DTESSERA_PYTHON=ON
	@cmake --build --preset release --target tessera_lab cuda_test tessera_python -j $(BUILD_JOBS)
	@tools/test-gpu $(ARGS)

wheel: ## a manylinux wheel of the Python package in dist/, with CUDA when nvcc is there
	@tools/setup python
	@cmake --preset release -DTESSERA_PYTHON=ON
	@cmake --build --preset release --target tessera_python -j $(BUILD_JOBS)
	@tools/wheel --build $(RELEASE) --out dist

cuda-report: ## compile time of the CUDA files, registers of the kernels, size of the library; fails over the budgets
	@tools/setup run
	@cmake --preset release -DTESSERA_CUDA=ON
	@cmake --build --preset release --target tessera -j $(BUILD_JOBS)
	@tools/cuda-report --build $(RELEASE) $(ARGS)

asan: ## the whole suite under AddressSanitizer and UndefinedBehaviorSanitizer
	@tools/setup test
	@BUILD_JOBS=$(BUILD_JOBS) tools/run-tests asan

tsan: ## the tests with threads under ThreadSanitizer
	@tools/setup test
	@BUILD_JOBS=$(BUILD_JOBS) tools/run-tests tsan

# libFuzzer keeps its corpus in build/fuzz/corpus; an input that breaks a promise is written to build/fuzz.
FUZZ_SECONDS ?= 3600
fuzz: ## the C interface under libFuzzer, with sanitizers; FUZZ_SECONDS=3600; needs Clang
	@tools/setup test
	@clang="$$(compgen -c clang++- | grep -E '^clang\+\+-[0-9]+$$' | sort -u -t- -k2,2n | tail -n1)"; \
	  cmake --preset fuzz -DTESSERA_TESTS=ON -DCMAKE_CXX_COMPILER="$${clang:-clang++}" \
	    -DCMAKE_C_COMPILER="$$(sed 's/++//' <<<"$${clang:-clang++}")" >/dev/null
	@cmake --build --preset fuzz -j $(BUILD_JOBS)
	@mkdir -p build/fuzz/corpus
	@build/fuzz/tests/capi_fuzz -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -len_control=0 -timeout=60 \
	  -artifact_prefix=build/fuzz/ build/fuzz/corpus

format: ## put all C, C++ and CUDA sources into the project's format
	@tools/setup test
	@tools/format

lint: ## check the format, the layers, the shape of the code, the documents' links and the rules of .clang-tidy
	@tools/setup lint
	@tools/format --check
	@tools/check-layers
	@tools/check-shape
	@tools/check-links
	@cmake --preset release -B build/lint -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON >/dev/null # GCC's are not Clang's
	@tools/tidy build/lint $(BUILD_JOBS)

docs: ## the reference manual, in build/docs
	@tools/setup docs
	@mkdir -p build/docs
	@doxygen docs/Doxyfile
	@echo "build/docs/html/index.html"

clean: ## remove build/ (.venv and .venv-peers stay)
	@rm -rf build
