//! Each test of the bench for a second, with linerate alone: that its traffic passes. No timing is
//! judged.

#![forbid(unsafe_code)]

use std::path::Path;
use std::process::{Command, Output};

use netns::{Implementation, announce};
use serde_json::Value;

/// Runs one test of the bench for a round; how it ended, and its JSON.
fn run(test: &str, name: &str, arguments: &[&str]) -> (Output, Value) {
    let json = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("smoke-{name}.json"));
    let ran = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(arguments)
        .args(["--brief", "--rounds", "1", "--only", test, "--json"])
        .arg(&json)
        .output()
        .expect("the bench is built with its tests");
    let text = std::fs::read_to_string(&json).expect("the bench wrote its JSON");
    (ran, serde_json::from_str(&text).expect("the bench writes JSON"))
}

fn bench(test: &str) -> Value {
    let (ran, report) = run(test, test, &["--beside", "none"]);
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "bench --only {test}: {}\n{errors}", ran.status);
    report
}

/// The figure must be there and be more than nothing.
fn passes(report: &Value, measures: &[&str]) {
    for measure in measures {
        let figure = report["contenders"][0]["figures"][measure]["median"].as_f64();
        assert!(figure > Some(0.0), "{measure}: {figure:?}");
    }
}

#[test]
fn tcp_passes_each_way_and_costs_time_and_memory() {
    let report = bench("tcp");
    passes(&report, &["tcp_forth", "tcp_back", "tcp_4", "tcp_32", "tcp_both"]);
    passes(&report, &["cpu_per_gb", "switches_voluntary_per_gb", "memory_tcp", "memory_end"]);
}

#[test]
fn pings_pass_alone_and_beside_tcp() {
    let report = bench("ping");
    passes(&report, &["ping_idle_p50", "ping_idle_p99", "ping_busy_tcp"]);
    passes(&report, &["ping_busy_p50", "ping_busy_p99", "ping_busy_p999"]);
}

#[test]
fn quic_passes_down_and_up() {
    passes(&bench("quic"), &["quic_down", "quic_up"]);
}

#[test]
fn floods_of_each_kind_pass() {
    let report = bench("udp");
    for flood in ["udp_64", "udp_200", "udp_1380", "udp_gso"] {
        passes(&report, &[flood, &format!("{flood}_sent")]);
        // The kernel's clock of it may not have ticked in so short a time.
        let cost = &report["contenders"][0]["figures"][format!("{flood}_cpu")]["median"];
        assert!(cost.is_number(), "{flood}: {cost}");
    }
}

#[test]
fn a_ramp_and_a_flood_pass() {
    passes(&bench("overload"), &["overload_peak", "overload_goodput"]);
}

#[test]
fn quic_by_tls_passes() {
    passes(&bench("quic-tls"), &["quic_tls_down", "quic_tls_up"]);
}

#[test]
fn forwarded_traffic_passes() {
    let measures = ["forward_tcp", "forward_quic_down", "forward_quic_up"];
    passes(&bench("forward"), &measures);
}

#[test]
fn tcp_passes_in_vxlan_where_there_is_any() {
    let report = bench("vxlan");
    let contender = &report["contenders"][0];
    assert!(
        contender["left_out"]["vxlan"].is_string()
            || contender["figures"].get("vxlan_tcp").is_some()
    );
    if contender["left_out"]["vxlan"].is_null() {
        passes(&report, &["vxlan_tcp"]);
    }
}

#[test]
fn the_last_of_many_peers_is_reached() {
    let measures = ["peers_1", "peers_1000", "memory_idle_peer"];
    passes(&bench("peers"), &measures);
}

/// And a cable without a tunnel, which has no peers, says so.
#[test]
fn ten_thousand_peers_shake_hands() {
    let (ran, report) = run("connections,handshakes", "handshakes", &["--beside", "bare"]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let bare = &report["contenders"][1];
    assert!(bare["figures"]["connections"]["median"].as_f64() > Some(0.0));
    assert!(bare["figures"]["memory_end"]["median"].is_null());
    assert!(bare["left_out"]["handshakes"].is_string());
    passes(&report, &["connections"]);
    passes(&report, &["handshakes", "memory_peer", "memory_session"]);
    let done = report["contenders"][0]["figures"]["handshakes_done"]["median"].as_f64();
    assert!(done > Some(99.0), "{done:?}");
}

/// Beside tailscaled, where that is to be had: what it carried stands beside both stacks.
#[test]
fn proxies_carry_in_and_out_on_each_stack() {
    let (ran, report) = run("proxy", "proxy", &[]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
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
        announce(
            "SKIPPED: proxies beside tailscaled, which is not installed (make peers ARGS=proxy)",
        );
    }
}

/// Where perf is not to be had it says so.
#[test]
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
        announce(&format!("SKIPPED: flame graphs: {errors}"));
        return;
    }
    for (end, name) in [("left", "sendmmsg"), ("right", "recvmmsg")] {
        let file = folder.join(format!("flame-tcp-{end}.svg"));
        let svg = std::fs::read_to_string(&file).expect("the bench wrote its picture");
        assert!(svg.contains(name) && svg.contains("engine::"), "{}", file.display());
    }
}

#[test]
fn tcp_passes_a_link_without_offloads() {
    passes(&bench("plain"), &["tcp_plain_link"]);
}

#[test]
fn tcp_passes_from_far() {
    passes(&bench("far"), &["tcp_rtt20", "tcp_rtt20_loss", "tcp_rtt66_loss"]);
}

#[test]
fn pings_over_a_link_with_delay_take_it() {
    let arguments = ["--beside", "none", "--link", "rtt=10,jitter=1,rate=100,loss=1"];
    let (ran, report) = run("ping", "link", &arguments);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    passes(&report, &["ping_busy_tcp", "link_lost"]);
    let figure = |measure| report["contenders"][0]["figures"][measure]["median"].as_f64();
    assert!(figure("ping_idle_p50") > Some(10.0), "{:?}", figure("ping_idle_p50"));
    assert!(figure("ping_busy_tcp") < Some(0.1), "{:?}", figure("ping_busy_tcp"));
}

#[test]
fn every_rung_of_the_ladder_carries() {
    let (ran, report) = run("quic", "ladder", &["ladder"]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let rungs = report["contenders"].as_array().expect("the report has contenders");
    assert_eq!(rungs.len(), 6);
    for rung in rungs {
        let figure = rung["figures"]["quic_up"]["median"].as_f64();
        assert!(figure > Some(0.0), "{}: {figure:?}", rung["name"]);
    }
}

#[test]
fn a_contender_that_fails_is_told_and_leaves_the_others() {
    let good = format!("good={}", Implementation::Linerate.path().display());
    let (ran, report) = run("plain", "failing", &["--binary", &good, "--binary", "bad=/bin/false"]);
    assert!(!ran.status.success());
    passes(&report, &["tcp_plain_link"]);
    assert!(report["contenders"][1]["figures"]["tcp_plain_link"]["median"].is_null());
}
