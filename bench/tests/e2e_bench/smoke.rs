//! The bench itself: the traffic of each test passes. Timing is not checked.
//!
//! All tests run once, as briefly as possible. Longer tests are ignored by default (`make smoke`):
//! tests at their full size, the ladder, flame graphs, links.

use std::path::Path;
use std::process::{Command, Output};

use linerate_bench::suite::Test;
use netns::Implementation;
use serde_json::Value;

/// Runs one round of these tests. Returns its output and its JSON.
fn run(tests: &str, name: &str, arguments: &[&str]) -> (Output, Value) {
    let json = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("smoke-{name}.json"));
    let ran = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(arguments)
        .args(["--rounds", "1", "--only", tests, "--json"])
        .arg(&json)
        .output()
        .expect("the bench is built with its tests");
    let text = std::fs::read_to_string(&json).expect("the bench wrote its JSON");
    (ran, serde_json::from_str(&text).expect("the bench writes JSON"))
}

/// The report of linerate alone for these tests.
fn bench(tests: &str, name: &str, length: &[&str]) -> Value {
    let (ran, report) = run(tests, name, &[length, &["--beside", "none"]].concat());
    succeeds(&ran);
    report
}

fn succeeds(ran: &Output) {
    assert!(ran.status.success(), "{}\n{}", ran.status, String::from_utf8_lossy(&ran.stderr));
}

const BRIEF: [&str; 1] = ["--brief"];
const WHOLE: [&str; 2] = ["--seconds", "1"];

/// The figures must exist and be greater than zero.
fn passes(report: &Value, measures: &[&str]) {
    for measure in measures {
        let figure = report["contenders"][0]["figures"][measure]["median"].as_f64();
        assert!(figure > Some(0.0), "{measure}: {figure:?}");
    }
}

const TCP: [&str; 9] = [
    "tcp_forth",
    "tcp_back",
    "tcp_4",
    "tcp_32",
    "tcp_both",
    "cpu_per_gb",
    "switches_voluntary_per_gb",
    "memory_tcp",
    "memory_end",
];
const PING: [&str; 6] = [
    "ping_idle_p50",
    "ping_idle_p99",
    "ping_busy_p50",
    "ping_busy_p99",
    "ping_busy_p999",
    "ping_busy_tcp",
];
const UDP: [&str; 8] = [
    "udp_64",
    "udp_64_sent",
    "udp_200",
    "udp_200_sent",
    "udp_1380",
    "udp_1380_sent",
    "udp_gso",
    "udp_gso_sent",
];
const FORWARD: [&str; 7] = [
    "forward_tcp",
    "forward_quic_down",
    "forward_quic_up",
    "forward_wire_down",
    "forward_wire_down_off",
    "forward_wire_up",
    "forward_wire_up_off",
];
const PROXY: [&str; 4] =
    ["proxy_namespace_in", "proxy_namespace_out", "proxy_in_process_in", "proxy_in_process_out"];
const TAILNET: [&str; 6] = [
    "tailnet_join",
    "tailnet_tcp_forth",
    "tailnet_quic_up",
    "tailnet_udp_64",
    "tailnet_relay_tcp",
    "tailnet_peer_relay_tcp",
];
const SERVER_MANY: [&str; 6] = [
    "server_10k",
    "server_10k_change_p99",
    "server_10k_again",
    "server_10k_policy",
    "server_10k_policy_renew_p99",
    "server_10k_policy_again",
];

/// Measures that a test must have.
fn measures(test: Test) -> &'static [&'static str] {
    match test {
        Test::Tcp => &TCP,
        Test::Ping => &PING,
        Test::Quic => &["quic_down", "quic_up"],
        Test::Udp => &UDP,
        Test::Overload => &["overload_peak", "overload_goodput"],
        Test::Connections => &["connections"],
        Test::QuicTls => &["quic_tls_down", "quic_tls_up"],
        Test::Plain => &["tcp_plain_link"],
        Test::Far => &["tcp_rtt20", "tcp_rtt20_loss", "tcp_rtt66_loss"],
        Test::Forward => &FORWARD,
        Test::Vxlan => &["vxlan_tcp"],
        Test::Jumbo => &["tcp_jumbo", "tcp_usual"],
        Test::Peers => &["peers_1", "peers_10"],
        Test::Handshakes => &["handshakes", "handshakes_again", "memory_peer"],
        Test::Proxy => &PROXY,
        Test::Tailnet => &TAILNET,
        Test::Nat => &["nat_cones_first", "nat_cones_direct", "nat_changed"],
        Test::Server => &["server_650", "server_650_reached", "server_policy_p99"],
        Test::ServerMany => &SERVER_MANY,
    }
}

#[test]
fn every_test_carries_traffic() {
    let names = Test::ALL.map(Test::name).join(",");
    let report = bench(&names, "all", &BRIEF);
    let left_out = &report["contenders"][0]["left_out"];
    for test in Test::ALL {
        // A kernel may lack VXLAN, and headscale may not be built; everything else is present.
        use Test::{Nat, Server, ServerMany, Tailnet, Vxlan};
        if !matches!(test, Vxlan | Tailnet | Nat | Server | ServerMany)
            || left_out[test.name()].is_null()
        {
            passes(&report, measures(test));
        } else if test == Test::Server {
            netns::skip("linerate-server");
        } else if test == Test::Tailnet {
            netns::skip("headscale");
        }
    }
    // The kernel's clock may be too coarse for a figure, which is then still a number.
    for flood in ["udp_64", "udp_200", "udp_1380", "udp_gso"] {
        let cost = &report["contenders"][0]["figures"][format!("{flood}_cpu")]["median"];
        assert!(cost.is_number(), "{flood}: {cost}");
    }
    let done = report["contenders"][0]["figures"]["handshakes_done"]["median"].as_f64();
    assert!(done > Some(99.0), "{done:?}");
}

#[test]
fn a_failed_contender_is_reported_and_the_others_are_measured() {
    let good = format!("good={}", Implementation::Linerate.path().display());
    let arguments = ["--brief", "--binary", &good, "--binary", "bad=/bin/false"];
    let (ran, report) = run("plain", "failing", &arguments);
    assert!(!ran.status.success());
    passes(&report, &["tcp_plain_link"]);
    assert!(report["contenders"][1]["figures"]["tcp_plain_link"]["median"].is_null());
}

fn table(arguments: &[&str]) -> Output {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_bench"));
    bench.arg("table").args(arguments).output().expect("the bench is built with its tests")
}

#[test]
fn a_partial_table_is_printed_as_markdown_and_not_written() {
    let ran = table(&["--brief", "--rounds", "1", "--only", "tcp", "--beside", "none"]);
    succeeds(&ran);
    let text = String::from_utf8_lossy(&ran.stdout);
    let row = text.lines().find(|line| line.starts_with("| TCP, 1 stream, forth"));
    assert!(row.is_none(), "there is no other contender: {text}");
    for words in ["of commit ", "medians of one round", "Versions: linerate", "It took "] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("smoke-figures");
    let files = ["README.md", "docs/figures.md"].map(|file| folder.join(file));
    std::fs::create_dir_all(folder.join("docs")).expect("it is writable");
    for file in &files {
        std::fs::write(file, "<!-- figures -->\nold\n<!-- /figures -->\n").expect("it is writable");
    }
    let arguments = ["--brief", "--only", "tcp", "--write", folder.to_str().expect("it is text")];
    let refused = table(&arguments);
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && errors.contains("--write needs the whole table"),
        "{errors}"
    );
    for file in &files {
        let text = std::fs::read_to_string(file).expect("it is still there");
        assert!(text.contains("old"), "{text}");
    }
}

#[test]
#[ignore = "long: make smoke"]
fn the_readmes_tables_have_every_contender_that_is_built() {
    let ran = table(&["--brief", "--rounds", "1", "--only", "tcp"]);
    succeeds(&ran);
    let text = String::from_utf8_lossy(&ran.stdout);
    let headings = text.lines().find(|line| line.ends_with("| ratio to the best other |"));
    let headings = headings.unwrap_or_default();
    for name in ["tailscale-wireguard-go", "wireguard-go", "gotatun", "boringtun", "tailscaled"] {
        let is_missing = text.contains(&format!("Not measured: {name} is not built."));
        assert!(is_missing || headings.contains(name), "{name}: {text}");
    }
}

#[test]
#[ignore = "long: make smoke"]
fn the_last_of_a_thousand_peers_is_reached() {
    let measures = ["peers_1", "peers_10", "peers_100", "peers_1000", "memory_idle_peer"];
    passes(&bench("peers", "peers", &WHOLE), &measures);
}

/// The bare cable is skipped: it lacks peers.
#[test]
#[ignore = "long: make smoke"]
fn ten_thousand_peers_shake_hands() {
    let arguments = ["--seconds", "1", "--beside", "bare"];
    let (ran, report) = run("connections,handshakes", "handshakes", &arguments);
    succeeds(&ran);
    let bare = &report["contenders"][1];
    assert!(bare["figures"]["connections"]["median"].as_f64() > Some(0.0));
    assert!(bare["figures"]["memory_end"]["median"].is_null());
    assert!(bare["left_out"]["handshakes"].is_string());
    passes(&report, &["connections"]);
    passes(&report, &["handshakes", "handshakes_again", "memory_peer", "memory_session"]);
    let done = report["contenders"][0]["figures"]["handshakes_done"]["median"].as_f64();
    assert!(done > Some(99.0), "{done:?}");
}

/// With tailscaled if it is built: its figures are compared with both stacks.
#[test]
#[ignore = "long: make smoke"]
fn proxies_carry_in_and_out_on_each_stack() {
    let (ran, report) = run("proxy", "proxy", &WHOLE);
    succeeds(&ran);
    let parts =
        ["in", "in_cpu", "out", "out_cpu", "memory", "in_64", "out_64", "far_in", "far_out"];
    for stack in ["namespace", "in_process"] {
        let measures = parts.map(|part| format!("proxy_{stack}_{part}"));
        for contender in report["contenders"].as_array().expect("the report has contenders") {
            for measure in &measures {
                let figure = contender["figures"][measure]["median"].as_f64();
                assert!(figure > Some(0.0), "{}, {measure}: {figure:?}", contender["name"]);
            }
        }
    }
    passes(&report, &["proxy_in_process_gso", "proxy_in_process_gro"]);
    if report["contenders"][1].is_null() {
        netns::skip("tailscaled");
    }
}

/// Without perf the bench says so.
#[test]
#[ignore = "long: make smoke"]
fn a_flame_graph_of_each_end_has_names_of_kernel_and_userland() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("smoke-flame");
    let ran = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(["flame", "tcp", "--brief", "--svg"])
        .arg(&folder)
        .output()
        .expect("the bench is built with its tests");
    let errors = String::from_utf8_lossy(&ran.stderr);
    if !ran.status.success() {
        assert!(
            errors.contains("perf is not installed") || errors.contains("perf was refused"),
            "{errors}"
        );
        return netns::skip("perf");
    }
    for (end, name) in [("left", "sendmmsg"), ("right", "recvmmsg")] {
        let file = folder.join(format!("flame-tcp-{end}.svg"));
        let svg = std::fs::read_to_string(&file).expect("the bench wrote its picture");
        assert!(svg.contains(name) && svg.contains("engine::"), "{}", file.display());
    }
}

#[test]
#[ignore = "long: make smoke"]
fn pings_over_a_link_have_its_delay() {
    let arguments =
        ["--seconds", "1", "--beside", "none", "--link", "rtt=10,jitter=1,rate=100,loss=1"];
    let (ran, report) = run("ping", "link", &arguments);
    succeeds(&ran);
    passes(&report, &["ping_busy_tcp", "link_lost"]);
    let figure = |measure| report["contenders"][0]["figures"][measure]["median"].as_f64();
    assert!(figure("ping_idle_p50") > Some(10.0), "{:?}", figure("ping_idle_p50"));
    assert!(figure("ping_busy_tcp") < Some(0.1), "{:?}", figure("ping_busy_tcp"));
}

#[test]
#[ignore = "long: make smoke"]
fn every_rung_of_the_ladder_carries() {
    let (ran, report) = run("quic", "ladder", &["ladder", "--brief"]);
    succeeds(&ran);
    let rungs = report["contenders"].as_array().expect("the report has contenders");
    assert_eq!(rungs.len(), 7);
    for rung in rungs {
        let figure = rung["figures"]["quic_up"]["median"].as_f64();
        assert!(figure > Some(0.0), "{}: {figure:?}", rung["name"]);
    }
}
