# The two commands that the README promises are `make demo` and `make test`.

CARGO ?= cargo

.PHONY: build demo check test fuzz-seeds guest-test bench fuzz clean

build:
	$(CARGO) build --release --package evenkeel --package evenkeeld

demo: build
	target/release/evenkeel demo

# What a person runs before pushing; part of `make test`.
check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet
	$(CARGO) xtask check

test: check
	$(CARGO) test --workspace --quiet
	$(MAKE) fuzz-seeds
	$(MAKE) guest-test

# The fuzz targets' harnesses over fixed seeds, on the stable toolchain. libFuzzer itself needs a C++ compiler.
fuzz-seeds:
	@if command -v c++ >/dev/null; then cd fuzz && $(CARGO) test --quiet; \
	else echo "fuzz-seeds: skipped, there is no C++ compiler (c++)"; test -z "$$CI"; fi

guest-test: build
	$(CARGO) xtask guest-test

# Both sides of each comparison in one run; writes a table and JSON. SPDK_DIR=… adds SPDK as a peer.
bench: build
	$(CARGO) xtask bench

# Five minutes of each fuzz target; needs a nightly toolchain and cargo-fuzz.
fuzz:
	$(CARGO) xtask fuzz --seconds 300

clean:
	$(CARGO) clean
