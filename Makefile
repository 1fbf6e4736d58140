# The two commands that the README promises are `make demo` and `make test`.

CARGO ?= cargo

.PHONY: build demo check fuzz-check test fuzz-seeds guest-test browser-test bench fuzz clean

build:
	$(CARGO) build --release --package evenkeel --package evenkeeld --package keeper

demo: build
	target/release/evenkeel demo

# What a person runs before pushing; part of `make test`.
check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet
	$(CARGO) xtask check
	$(MAKE) fuzz-check

test: check
	$(CARGO) test --workspace --quiet
	$(MAKE) fuzz-seeds
	$(MAKE) guest-test
	$(MAKE) browser-test

# Runs a command in fuzz/, on the stable toolchain, with what is compiled already. libFuzzer, which it links, needs a C++
# compiler.
in_fuzz = if command -v c++ >/dev/null; then \
	export CARGO_TARGET_DIR="$${CARGO_TARGET_DIR:-$(CURDIR)/target}" && cd fuzz && $(1); \
	else echo "$@: skipped, there is no C++ compiler (c++)"; test -z "$$CI"; fi

fuzz-check:
	cd fuzz && $(CARGO) fmt --check
	@$(call in_fuzz,$(CARGO) clippy --all-targets --quiet -- -D warnings)

# The fuzz targets' harnesses over fixed seeds and over the corpora.
fuzz-seeds:
	@$(call in_fuzz,$(CARGO) test --quiet)

guest-test: build
	$(CARGO) xtask guest-test

# The page in a headless Chromium; skipped, in words, where there is none.
browser-test: build
	$(CARGO) xtask browser-test

# Both sides of each comparison in one run; writes a table and JSON. SPDK_DIR=… adds SPDK as a peer.
bench: build
	$(CARGO) xtask bench

# Five minutes of each fuzz target; needs a nightly toolchain and cargo-fuzz.
fuzz:
	$(CARGO) xtask fuzz --seconds 300

clean:
	$(CARGO) clean
