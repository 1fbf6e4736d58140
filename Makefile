# The two commands that the README promises are `make demo` and `make test`.

CARGO ?= cargo

.PHONY: build demo check test guest-test bench fuzz clean

build:
	$(CARGO) build --release --package evenkeel

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
	$(MAKE) guest-test

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
