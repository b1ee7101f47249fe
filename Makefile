# make demo     a tunnel between two hosts on this machine, and its throughput
#               (make demo BESIDE=wireguard-go,boringtun,gotatun compares)
# make bench    throughput and cost compared with Tailscale's wireguard-go, test by test, as ratios
#               (make bench-quick within two minutes; make ladder: technique by technique; make
#               ceiling: compared with the same program without crypto)
# make readme-table     the figures of README.md and docs/figures.md, of a commit: some 25 minutes (ROUNDS=5)
# make flame    flame graphs of both daemons in one test: TEST=tcp
# make test     the tests that every change must pass, with the end-to-end tests in network namespaces
# make check    formatting, clippy and the tests that a change affects, in minutes (SINCE=main)
# make test-all further tests for a release: hours
# make timings  build time of each crate and run time of each test
# make test-offloads    tests of the data path without each of the kernel's offloads, and without all
# make test-clients     common programs through a proxy: ssh, dig, iperf3, a browser
# make battery  2,000 random configuration files, by wg-quick and by linerate up (half an hour)
# make smoke    the bench's tests at their full size; make test runs them briefly
# make mutants  checks that the tests find faults in rights, limits and confinement (NAMES='server-same-site')
# make memcheck checks by valgrind that no branch and no address depends on a secret (minutes)
# make kernel-test      the kernel's own WireGuard as a peer: Debian's, as a guest of QEMU (minutes)
# make arm-test         the pure crates' tests as aarch64 programs, under QEMU
# make replicas three servers with one PostgreSQL: one with 3,000 clients is killed, changes are
#               counted, a disk is full, Patroni fails over; as root
# make soak     ten minutes of mixed load while a peer roams and keys change (MINUTES=10)
# make lint     formatting, clippy, dependencies
# make advisories       known vulnerabilities in dependencies (fetches RustSec's database; builds cargo-deny
#               if it is not installed, as make test-all does)
# make book     the documents as a book: target/book/html/index.html
# make build    the binary, target/release/linerate
# make server   the coordinator, target/release/linerate-server
# make deb      the Debian packages, target/deb/linerate_*.deb and linerate-server_*.deb
#               (make deb-test installs them in a clean root; make systemd-test boots one and starts
#               their units there; make container builds images, and make container-test runs them)

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
# nft, ip and sysctl may only be in root's PATH.
export PATH := $(PATH):/usr/sbin:/sbin

TARGET := $(or $(CARGO_TARGET_DIR),target)
BESIDE ?=
ARGS ?=
SECONDS_EACH ?= 3
ROUNDS ?= 5
MINUTES ?= 10
TEST ?= tcp
# Every command builds the whole workspace: a part of it would have other features, and its libraries
# would be built again.
TESTS := cargo test --workspace --no-fail-fast
# The names of end-to-end targets begin with e2e: that of hosts, and that of the bench.
$(if $(wildcard crates/*/tests/e*),$(error no target would run $(wildcard crates/*/tests/e*): its name begins with e))
UNIT_TEST := $(TESTS) --lib --bin manuals --test '[!e]*'
END_TO_END := $(TESTS) --test e2e
BENCH_TEST := $(TESTS) --test e2e_bench
IN_HOSTS := tests/netns/run
SIDE_BY_SIDE = make --no-print-directory --keep-going --jobs=$(JOBS) --output-sync=target
BUILD_TESTS := cargo build --workspace --bins --examples --tests
# End-to-end tests mostly wait for timers, so many share the cores (THREADS at a time, of JOBS programs),
# with longer deadlines. Tests that count drops run separately: some ALONE, some a FEW at a time.
export THREADS ?= 8
JOBS ?= 2
ALONE := soak:: overload:: traffic::udp_at_a_modest_rate a_map_of_a_hundred_thousand_peers
FEW := hostile:: a_clock_that_is_off_by_a_day
export APART := $(ALONE) $(FEW)
SKIP_APART := $(APART:%=--skip=%)
SHARED := env LINERATE_NETNS_SHARED=1 $(IN_HOSTS)
ONE_BY_ONE := --test-threads=1

# command:package, as Debian names them.
DEPS := wg:wireguard-tools wg-quick:wireguard-tools iperf3:iperf3 nft:nftables ip:iproute2 \
        ping:iputils-ping sysctl:procps unshare:util-linux nsenter:util-linux setpriv:util-linux \
        stdbuf:coreutils cc:gcc ethtool:ethtool curl:curl git:git tcpdump:tcpdump \
        dig:bind9-dnsutils strace:strace dnsmasq:dnsmasq-base proxychains4:proxychains4 iptables:iptables \
        miniupnpd:miniupnpd-nftables tayga:tayga tinyproxy:tinyproxy-bin conntrack:conntrack \
        node:nodejs npm:npm nginx:nginx caddy:caddy haproxy:haproxy pg_ctlcluster:postgresql pgbouncer:pgbouncer
# Only for test-clients: large, and openssh-server installs a service.
CLIENTS := ssh:openssh-client sshd:openssh-server nc:netcat-openbsd kdig:knot-dnsutils \
           socksify:dante-client chromium:chromium

# Only for replicas.
FAILOVER := etcd:etcd-server patroni:patroni

# Only for memcheck.
VALGRIND := valgrind:valgrind

# Only for kernel-test and arm-test.
GUEST := qemu-system-x86_64:qemu-system-x86 cpio:cpio depmod:kmod dpkg-deb:dpkg gzip:gzip
ARM := qemu-aarch64:qemu-user aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu \
       /usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1:libc6-dev-arm64-cross

.PHONY: server demo bench bench-quick readme-table ladder ceiling flame build-tests test test-units test-hosts \
        test-bench test-modes test-apart test-all check timings test-offloads test-clients battery memcheck mutants \
        kernel-test arm-test replicas smoke soak build deb deb-test systemd-test container container-test deps peers tailnet-peers lint book \
        advisories cargo-deny fuzz clean

demo: deps $(if $(BESIDE),peers)
	cargo build --profile demo -p linerate-cli -p linerate-netns --bin linerate --bin demo
	tests/netns/run $(TARGET)/demo/demo --seconds $(SECONDS_EACH) $(if $(BESIDE),--beside $(BESIDE))

REPORT = --json $(TARGET)/report/$(1).json --html $(TARGET)/report/$(1).html

bench-quick: ARGS += --seconds 1 --rounds 2 --only tcp,ping,quic,udp,plain
bench: $(if $(findstring server,$(ARGS)),server)
bench bench-quick: deps build peers
	cargo build --release -p linerate-bench --bin bench
	tests/netns/run $(TARGET)/release/bench $(if $(BESIDE),--beside $(BESIDE)) $(call REPORT,$@) $(ARGS)

# README.md and docs/figures.md are only written if everything else is committed.
readme-table: SECONDS_EACH = 2
readme-table: deps build peers
	cargo build --release -p linerate-bench --bin bench
	tests/netns/run $(TARGET)/release/bench table --rounds $(ROUNDS) --seconds $(SECONDS_EACH) \
	  --write . $(call REPORT,$@) $(ARGS)

ladder: deps build
	cargo build --release -p linerate-bench --bin bench
	tests/netns/run $(TARGET)/release/bench ladder $(call REPORT,$@) $(ARGS)

# Compared with the same program without crypto, which shows the cost of everything else.
ceiling: deps build peers
	cargo build --release -p linerate-bench --bin bench
	RUSTFLAGS='$(RUSTFLAGS) --cfg linerate_without_crypto' \
	  cargo build --release -p linerate-cli --target-dir $(TARGET)/without-crypto
	tests/netns/run $(TARGET)/release/bench --binary with=$(TARGET)/release/linerate \
	  --binary without=$(TARGET)/without-crypto/release/linerate --beside tailscale-wireguard-go $(call REPORT,$@) $(ARGS)

flame: deps build
	cargo build --release -p linerate-bench --bin bench
	tests/netns/run $(TARGET)/release/bench flame $(TEST) --svg $(TARGET)/report $(ARGS)

# Runs stages one after the other, also after a failed one; all_passed prints their durations and fails
# with the names of the failed stages.
STAGES = failed=(); took=(); \
	stage() { printf '\n== %s\n\n' "$$1"; local from=$$SECONDS; "$${@:2}" || failed+=("$$1"); \
	  took+=("$$(printf '%5d s  %s' $$((SECONDS - from)) "$$1")"); }; \
	all_passed() { printf '\n'; printf '%s\n' "$${took[@]}"; printf '%5d s  in all\n' $$SECONDS; \
	  [ -z "$${failed[*]}" ] || { printf 'FAILED: %s\n' "$${failed[@]}" >&2; false; }; }

# Builds everything that the tests run, once, outside of the namespaces, because they have no network.
build-tests: deps
	$(BUILD_TESTS)

# The peers are built in the background; targets that need them wait. Recipes call `make` by its name, so
# that `make -n` only prints it.
test: deps
	@mkdir -p $(TARGET); \
	$(STAGES); \
	set -m; tests/netns/peers tailnet </dev/null >$(TARGET)/peers.log 2>&1 & peers=$$!; set +m; \
	trap 'kill -- -$$peers 2>/dev/null || :' EXIT; \
	stage 'build' make --no-print-directory build-tests; \
	stage 'unit tests and end-to-end tests' $(SIDE_BY_SIDE) test-units test-hosts; \
	stage 'the bench and end-to-end tests in other modes' $(SIDE_BY_SIDE) test-bench test-modes; \
	stage 'end-to-end tests apart' make --no-print-directory test-apart; \
	stage 'peers, in the background' wait $$peers; \
	cat $(TARGET)/peers.log; \
	all_passed

# ARGS selects tests by name: make test-hosts ARGS=nat::idle
test-units: build-tests tailnet-peers
	@$(STAGES); \
	stage 'unit tests' $(IN_HOSTS) $(UNIT_TEST) -- $(ARGS); \
	stage 'documentation tests' env -u MAKEFLAGS cargo test --workspace --doc -- $(ARGS); \
	all_passed

test-hosts: build-tests tailnet-peers
	@$(STAGES); \
	stage 'end-to-end tests' $(SHARED) $(END_TO_END) -- \
	  --test-threads=$(THREADS) $(or $(ARGS),$(SKIP_APART)); \
	all_passed

test-bench: build-tests tailnet-peers
	$(SHARED) $(BENCH_TEST) -- $(ONE_BY_ONE) $(ARGS)

test-modes: build-tests tailnet-peers
	@$(STAGES); \
	stage 'traffic without offloads' env LINERATE_NETNS_OFFLOAD_OFF=all \
	  $(SHARED) $(END_TO_END) -- --test-threads=$(THREADS) traffic:: $(SKIP_APART); \
	stage 'proxies with their stack in the process' env LINERATE_NETNS_STACK=in-process \
	  $(SHARED) $(END_TO_END) -- --test-threads=$(THREADS) proxy:: $(SKIP_APART); \
	all_passed

test-apart: build-tests tailnet-peers
	@$(STAGES); \
	stage 'tests that run alone' $(IN_HOSTS) $(END_TO_END) -- $(ONE_BY_ONE) $(ALONE); \
	stage 'the same of traffic, without offloads' env LINERATE_NETNS_OFFLOAD_OFF=all \
	  $(IN_HOSTS) $(END_TO_END) -- $(ONE_BY_ONE) $(filter traffic::%,$(ALONE)); \
	stage 'tests that run a few at a time' $(IN_HOSTS) $(END_TO_END) -- --test-threads=3 $(FEW) $(ALONE:%=--skip=%); \
	all_passed

# Tests that a change affects, in minutes: make check SINCE=main
check: deps tailnet-peers
	tests/check $(SINCE)

# Half an hour: a clean build in its own folder.
timings: DEPS += bc:bc
timings: deps
	tests/timings

# Further tests for a release: the end-to-end tests of the release build, and the slow tests. The last
# lines list which tests ran, and which were skipped.
test-all:
	@mkdir -p $(TARGET); passed=true; { $(STAGES); \
	for what in test cargo-deny lint advisories build server; do stage "make $$what" make --no-print-directory $$what; done; \
	stage 'end-to-end tests of the release build' env LINERATE_BIN=$(abspath $(TARGET))/release/linerate \
	  LINERATE_SERVER_BIN=$(abspath $(TARGET))/release/linerate-server \
	  $(IN_HOSTS) $(END_TO_END) -- $(ONE_BY_ONE); \
	stage 'networks that our own server coordinates' env LINERATE_NETNS_COORDINATOR=linerate \
	  make --no-print-directory test-hosts ARGS='nat:: tailnet:: $(SKIP_APART)'; \
	stage 'the longest frames of a coordinator' \
	  cargo test --release -p linerate-mesh --test memory -- --ignored; \
	for what in test-offloads battery smoke test-clients replicas soak memcheck mutants kernel-test arm-test \
	  deb-test systemd-test container-test fuzz; do \
	  stage "make $$what" make --no-print-directory $$what; \
	done; \
	all_passed; } 2>&1 | tee $(TARGET)/test-all.log || passed=false; \
	{ grep -o 'SKIPPED: .*' $(TARGET)/test-all.log || :; } | sort -u; $$passed

# Tests that make test runs briefly, and tests in scripts.
replicas: DEPS += $(FAILOVER)
replicas: deps server
	cargo test --release -p linerate-server --test integration --no-run
	cargo build --release -p linerate-server --example changes
	@$(STAGES); ulimit -n $$(ulimit -H -n); \
	stage 'a model of three servers' env LINERATE_SEEDS=2000 cargo test -p linerate-server --lib model; \
	stage 'one of three servers killed, with 3,000 clients' env LINERATE_CLIENTS=4000 \
	  cargo test --release -p linerate-server --test integration -- --nocapture clients_of_a_killed_server; \
	stage 'changes a second' cargo run --release -p linerate-server --example changes; \
	stage 'a full disk' unshare -m tests/postgres/full-disk $(TARGET)/release/linerate-server; \
	stage 'a failover' unshare -npf --kill-child --mount-proc \
	  tests/postgres/patroni $(TARGET)/release/linerate-server; \
	all_passed

battery: build-tests
	LINERATE_RANDOM_FILES=2000 $(SHARED) $(END_TO_END) -- --nocapture battery::random

OFFLOADS := tun-tso tun-uso tun-tunnel-gso tun-tcp-gro tun-udp-gro udp-gso udp-gro all
CARRYING := traffic roaming ecn interop overlay

test-offloads: peers build-tests
	@$(STAGES); \
	for off in $(OFFLOADS); do \
	  stage "without $$off" env LINERATE_NETNS_OFFLOAD_OFF=$$off \
	    $(IN_HOSTS) $(END_TO_END) -- $(ONE_BY_ONE) $(CARRYING:%=%::); \
	done; \
	all_passed

# Tailscaled is skipped if it is not built: make peers ARGS=proxy.
smoke: peers build build-tests
	LINERATE_BIN=$(abspath $(TARGET))/release/linerate $(IN_HOSTS) $(BENCH_TEST) -- --include-ignored $(ONE_BY_ONE) smoke::

test-clients: DEPS += $(CLIENTS)
test-clients: build-tests
	@$(STAGES); \
	for stack in namespace in-process; do \
	  stage "clients of the stack: $$stack" \
	    env LINERATE_NETNS_CLIENTS=all LINERATE_NETNS_STACK=$$stack \
	    $(IN_HOSTS) $(END_TO_END) -- $(ONE_BY_ONE) proxy::clients::; \
	done; \
	stage "the server's page" $(IN_HOSTS) $(TESTS) --test integration admin::browser::; \
	all_passed

# In the release build, because debug assertions branch on secrets. One test at a time, because memcheck
# counts for the whole program.
memcheck: DEPS += $(VALGRIND)
memcheck: export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER := valgrind -q
memcheck: deps
	cargo test --release -p linerate-crypto -p linerate-wg --lib -- \
	  --ignored $(ONE_BY_ONE) memcheck

# Applies the faults of tests/mutants to a copy of the last commit, one after the other.
mutants: deps tailnet-peers
	tests/mutants/run $(NAMES)

# For a release, and by hand: it boots a guest for each test. ARGS='roaming' selects some of them.
kernel-test: DEPS += $(GUEST)
kernel-test: build-tests
	guest=$$(tests/kernel/guest); \
	LINERATE_GUEST=$$guest $(SHARED) $(END_TO_END) -- --ignored $(ONE_BY_ONE) kernel::$(ARGS)

# rustup has the target's standard library; Debian has the compiler, its C library and an emulator.
# seccomp, landlock and namespaces are not emulated, so tests that need them are built but not run.
ARM_TARGET := aarch64-unknown-linux-gnu
ARM_TESTED := packet crypto wg netstack engine sim
ARM_TESTS := idle inverse scenarios stacks tunnel
arm-test: DEPS += $(ARM)
arm-test: export CC_aarch64_unknown_linux_gnu := aarch64-linux-gnu-gcc
arm-test: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER := aarch64-linux-gnu-gcc
arm-test: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER := qemu-aarch64 -L /usr/aarch64-linux-gnu
arm-test: deps
	rustup target add $(ARM_TARGET)
	cargo build --target $(ARM_TARGET) -p linerate-cli
	qemu-aarch64 -L /usr/aarch64-linux-gnu $(TARGET)/$(ARM_TARGET)/debug/linerate --version
	cargo test --target $(ARM_TARGET) $(ARM_TESTED:%=-p linerate-%) --lib $(ARM_TESTS:%=--test %) $(ARGS)

soak: build build-tests
	SOAK_SECONDS=$$(( $(MINUTES) * 60 )) LINERATE_BIN=$(abspath $(TARGET))/release/linerate \
	  $(IN_HOSTS) $(END_TO_END) -- $(ONE_BY_ONE) soak::

build:
	cargo build --release -p linerate-cli

server:
	cargo build --release -p linerate-server

deb: build server
	cargo build -p linerate-packaging
	rm -rf $(TARGET)/manuals
	$(TARGET)/debug/manuals $(TARGET)/manuals
	packaging/deb linerate $(TARGET)/release/linerate $(TARGET)/manuals $(TARGET)/deb
	packaging/deb linerate-server $(TARGET)/release/linerate-server $(TARGET)/manuals $(TARGET)/deb

OF_VERSION = $$(dpkg-parsechangelog -l packaging/debian/changelog -S Version)_$$(dpkg --print-architecture).deb
DEB = $(TARGET)/deb/linerate_$(OF_VERSION)
SERVER_DEB = $(TARGET)/deb/linerate-server_$(OF_VERSION)

deb-test systemd-test container-test: DEPS += debootstrap:debootstrap dpkg-shlibdeps:dpkg-dev
deb-test: DEPS += lintian:lintian
container-test: DEPS += podman:podman crun:crun
systemd-test: tailnet-peers
deb-test systemd-test container-test: deps deb
	packaging/$@ $(DEB) $(SERVER_DEB) $(TARGET)/deb-test

# With podman, buildah or docker: ENGINE=... From another Debian image: ARGS='--build-arg BASE=...'.
ENGINE ?= $(firstword $(foreach engine,podman buildah docker,$(if $(shell command -v $(engine)),$(engine))))

container: deb
	install -D -m 644 $(DEB) $(TARGET)/container/linerate.deb
	install -D -m 644 $(SERVER_DEB) $(TARGET)/container/linerate-server.deb
	@[ -n "$(ENGINE)" ] || { echo "neither podman nor buildah nor docker is installed" >&2; exit 1; }
	$(ENGINE) build --file packaging/Containerfile --tag linerate $(ARGS) $(TARGET)/container
	$(ENGINE) build --file packaging/Containerfile.server --tag linerate-server $(ARGS) $(TARGET)/container

deps:
	@missing=(); \
	for dep in $(DEPS); do \
	  command -v "$${dep%:*}" >/dev/null || missing+=("$${dep#*:}"); \
	done; \
	packages=$$(printf '%s\n' "$${missing[@]}" | sort -u | xargs); \
	if [ -z "$$packages" ]; then exit 0; fi; \
	if ! command -v apt-get >/dev/null; then \
	  echo "make deps: no apt-get here; install by other means: $$packages" >&2; exit 1; \
	fi; \
	if [ "$$(id -u)" != 0 ]; then \
	  echo "make deps: not root; as root: apt-get install $$packages" >&2; exit 1; \
	fi; \
	echo "make deps: installing $$packages"; \
	apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$packages

# Large programs are only built if requested.
readme-table: TAILSCALED = tailnet tailscaled
TAILSCALED = $(if $(or $(findstring proxy,$(ARGS)),$(findstring tailscaled,$(ARGS) $(BESIDE))),tailscaled) \
             $(if $(findstring tailnet,$(ARGS)),tailnet tailscaled) $(if $(findstring server,$(ARGS)),server)
peers:
	@tests/netns/peers $(TAILSCALED)

# Includes the real programs of a tailnet, headscale and tailscaled: some ten minutes at first.
tailnet-peers:
	@tests/netns/peers tailnet

# A copy of all pages has the same links as the tree. docs/SUMMARY.md becomes the book's, from its root.
BOOK := $(TARGET)/book
MDBOOK := $(TARGET)/mdbook/bin/mdbook
book: DEPS := git:git
book: deps $(MDBOOK)
	rm -rf $(BOOK)
	mkdir -p $(BOOK)/src
	git ls-files -z '*.md' docs LICENSE | xargs -0 cp --parents --target-directory=$(BOOK)/src
	cp docs/book.toml $(BOOK)
	sed -e 's,](,](docs/,' -e 's,](docs/\.\./,](,' docs/SUMMARY.md >$(BOOK)/src/SUMMARY.md
	$(MDBOOK) build $(BOOK)

$(MDBOOK):
	cargo install --locked mdbook --version 0.5.4 --root $(TARGET)/mdbook

# Each target for FUZZ_SECONDS: make fuzz FUZZ_SECONDS=3600. Stable Rust counts what each input reaches;
# the address sanitizer needs nightly (cargo +nightly fuzz run TARGET). New inputs stay below TARGET.
FUZZ_SECONDS ?= 20
FUZZ_FLAGS := --cfg fuzzing -Cdebug-assertions -Coverflow-checks -Cpasses=sancov-module \
  $(addprefix -Cllvm-args=-sanitizer-coverage-,level=4 inline-8bit-counters pc-table trace-compares)
fuzz: HOST = $(shell rustc -vV | sed -n 's/host: //p')
fuzz:
	RUSTFLAGS='$(FUZZ_FLAGS)' cargo build --manifest-path fuzz/Cargo.toml --release --bins \
	  --target $(HOST) --target-dir $(TARGET)/fuzz
	@$(STAGES); out=$(abspath $(TARGET))/fuzz; \
	for source in fuzz/fuzz_targets/*.rs; do \
	  target=$$(basename $$source .rs); mkdir -p $$out/corpus/$$target; \
	  stage "$$target" $$out/$(HOST)/release/$$target $$out/corpus/$$target fuzz/corpus/$$target \
	    -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=$$out/$$target- -print_final_stats=1; \
	done; \
	all_passed

lint:
	@$(STAGES); \
	stage formatting cargo fmt --all --check; \
	stage 'plain English' tests/plain-english; \
	stage clippy cargo clippy --workspace --all-targets -- -D warnings; \
	stage 'the library alone' cargo clippy -p linerate-tunnel --lib -- -D warnings; \
	stage 'the library as a node' cargo clippy -p linerate-tunnel --lib --features tailnet -- -D warnings; \
	left_out=; \
	if command -v cargo-deny >/dev/null; then stage cargo-deny cargo deny check bans licenses sources; \
	else left_out='SKIPPED: cargo-deny is not installed (make cargo-deny), so licenses and sources of dependencies are not checked'; fi; \
	passed=true; all_passed || passed=false; \
	[ -z "$$left_out" ] || printf '\n%s\n\n' "$$left_out" >&2; \
	$$passed

advisories: cargo-deny
	cargo deny check advisories
	cd fuzz && cargo deny check advisories

# Cargo builds it, which takes longer than all other lints: make lint skips it with a message.
cargo-deny:
	@command -v cargo-deny >/dev/null || cargo install --locked cargo-deny

clean:
	cargo clean
