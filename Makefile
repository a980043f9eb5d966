# Tinsmith. `make help` lists the verbs. Everything that tests need is installed below this folder (.venv, .tools, node_modules) and pinned.

SHELL   := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
PLUGINS := $(filter-out internal,$(notdir $(patsubst %/,%,$(dir $(wildcard backends/*/main.go)))))
GO      := go
CONFIG  ?= configs/default.yaml
CASE    ?=
PEERS   ?=
GPU     ?=
REPORT  ?= cudart/REPORT.md
FLAGS   ?=
ARCH    ?= amd64 arm64
DIST    ?= dist
IMAGE   ?=
DEBUG   ?=
WANTED  := $(shell sed -n 's/^go //p' go.mod)
LINT    := .tools/golangci-lint-v2.12.2

# With these tags the standard library has the same files with cgo (plugins) and without (gateway), so that the 400 packages which both need are compiled once,
# and gin leaves out MessagePack, which nothing here speaks. Debug information takes a sixth of a first build and is left out (stack traces and pprof need none);
# `make build DEBUG=1` puts it in for dlv and gdb. For every Go command, for what is built with other flags is compiled anew.
export GOFLAGS := $(strip $(shell $(GO) env GOFLAGS 2>/dev/null) -tags=netgo,osusergo,nomsgpack $(if $(DEBUG),,-gcflags=all=-dwarf=false))
export CGO_CFLAGS := $(or $(CGO_CFLAGS),$(if $(DEBUG),-g) -O2)
LDFLAGS := -ldflags "$(if $(DEBUG),,-w )-X main.version=$(VERSION)"

.PHONY: help build run test test-all check kernels bench devicebench demo dist clean needed compiled FORCE

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: bin/tinsmith bin/plugins ## the gateway and the plugins, into bin/

# What a build needs, by name, before anything is compiled. An older Go fetches the one of go.mod by itself, from 1.21 on.
needed: FORCE
	@missing=; command -v $(GO) >/dev/null || missing="$$missing\n  Go $(WANTED) or newer (https://go.dev/dl), as the command \"$(GO)\""; \
	command -v $${CC:-gcc} >/dev/null || missing="$$missing\n  a C compiler, as the command \"$${CC:-gcc}\" (on Debian: apt install gcc libc6-dev)"; \
	if [ -z "$$missing" ]; then \
	  have=$$($(GO) env GOVERSION 2>/dev/null | sed 's/^go//'); \
	  [ "$$(printf '%s\n%s\n' "$(WANTED)" "$${have:-0}" | sort -V | head -n 1)" = "$(WANTED)" ] || missing="\n  Go $(WANTED) or newer (https://go.dev/dl): \"$(GO)\" is $${have:-older than 1.21}"; \
	fi; \
	if [ -n "$$missing" ]; then printf "Tinsmith cannot be built without:$$missing\n" >&2; exit 1; fi; \
	[ -x bin/tinsmith ] || echo "compiling the gateway and its plugins: about two minutes the first time, seconds later"

# The Go tool knows what is up to date. The first line compiles what all of them need, on all processors; the programs then are only linked.
compiled: needed
	@$(GO) list -export -deps ./gateway $(PLUGINS:%=./backends/%) >/dev/null
bin/tinsmith: compiled
	@CGO_ENABLED=0 $(GO) build $(LDFLAGS) -o $@ ./gateway
bin/plugins: compiled
	@$(GO) build $(LDFLAGS) -o $@/ $(PLUGINS:%=./backends/%)
FORCE:

run: build ## build everything and start the server with the built-in model
	@exec bin/tinsmith serve --config $(CONFIG)

test: check build ## install what the tests need and run them all, with the real clients
	@e2e/test.sh standard

test-all: check build ## every SDK version, every recipe, longer fuzzing
	@e2e/test.sh all

check: needed $(LINT) ## format, vet, lint, import rules, generated files
	@echo "check: format"; out=$$(gofmt -l $$(git ls-files --cached --others --exclude-standard '*.go')); [ -z "$$out" ] || { echo "gofmt: $$out"; exit 1; }
	@# A cache of its own: what the linter keeps of another clone, it tells with that clone's paths, and of one that is gone without its nolint lines.
	@echo "check: vet and lint"; $(GO) vet ./... && GOLANGCI_LINT_CACHE=$(CURDIR)/.cache/golangci-lint $(LINT) run ./...
	@echo "check: go.mod"; $(GO) mod tidy -diff
	@echo "check: gateway without cgo"; CGO_ENABLED=0 $(GO) build -o /dev/null ./gateway
	@e2e/generated.sh

$(LINT):
	@echo "installing golangci-lint into .tools (Go module, pinned: about 70 MB of sources, two to three minutes of compiling)"
	@GOBIN=$(CURDIR)/.tools/new $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(subst .tools/golangci-lint-,,$@)
	@mv .tools/new/golangci-lint $@ && rmdir .tools/new

kernels: ## compile the CUDA kernels to PTX (clang 19 from Debian, no CUDA) and print registers and spills
	@cudart/kernels/make.sh write

# FLAGS are devicebench's (-help lists them, and what to run first on a machine that is lent for half an hour), such as FLAGS="-only 0.6B -step-timeout 1h". A machine without Go runs what `make devicebench` makes, from the repository's
# root: bin/devicebench/start FLAGS.
bench: build ## speed, each figure beside the peak measured in the same run (PEERS=1: beside PyTorch and llama.cpp too; GPU=1: tests and speed of the GPUs, into REPORT)
	@$(if $(GPU),$(GO) run ./backends/internal/devicebench -report "$(REPORT)" $(FLAGS),e2e/bench.sh "$(PEERS)" "$(CASE)")

devicebench: needed ## programs of make bench GPU=1 for a machine without Go, stripped and compressed, into bin/devicebench
	@packaging/devicebench.sh bin/devicebench

demo: build ## train the built-in model with the real Tinker SDK, watch loss and reward move, then chat with it; CASE=cycles: its clock cycles
	@e2e/demo.sh "$(CASE)"

dist: ## what a release holds, into dist/: archives for Linux on amd64 and arm64 (ARCH="amd64" for one), the container image, checksums
	@packaging/dist.sh "$(DIST)" "$(VERSION)" "$(IMAGE)" $(ARCH)

clean: ## remove what was built and installed here
	rm -rf bin dist .venv .tools .cache e2e/node/node_modules
