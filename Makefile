# `make test` is all that a fresh machine needs; the rest are shorthands.
.PHONY: test demo bench chaos fmt lint services-up services-down clean

test:
	@scripts/test

demo:
	cargo run --release --locked -- demo

# BENCH="scenario ... --option ...", see bench/README.md
bench:
	cargo build --release --locked --package answerback --package answerback-bench
	$${CARGO_TARGET_DIR:-target}/release/answerback-bench $(BENCH)

# SECONDS=600 SEED=7 CHAOS="--option ...", see tests/chaos/README.md
SECONDS = 60
SEED = 1
chaos:
	@scripts/chaos $(SECONDS) $(SEED) $(CHAOS)

fmt:
	cargo fmt --all

lint:
	scripts/lint-cargo test --release --locked --workspace --no-run

services-up:
	scripts/services up
	@scripts/services env

services-down:
	scripts/services down

clean: services-down
	cargo clean
