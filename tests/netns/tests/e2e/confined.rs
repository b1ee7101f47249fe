//! What code could do in a confined process: calls that are injected into the processes of a real
//! `linerate`, started as users start it.
//!
//! ```text
//!   sweep       every call, option, request and flag that the filters allow, compared with a
//!               list in the tree: confined/LIFE.txt
//!   attacks     the same process requests forbidden operations
//! ```
//!
//! `LINERATE_BLESS=1` rewrites the lists; a change in one is a change of an attacker's options.

#![cfg(target_arch = "x86_64")]

mod attacks;
mod lives;
mod names;
mod sweep;

use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs};

use lives::{Confined, Life};
use netns::Injected;
use nix::libc;

/// The fields of proc_pid_status(5) that describe the rights of a process.
const RIGHTS: [&str; 4] = ["CapPrm", "CapEff", "CapAmb", "NoNewPrivs"];

#[test]
fn an_interface_is_allowed_exactly_its_list() {
    let life = Life::interface("wg0");
    compare("interface", &life.peer());
}

#[test]
fn an_interface_of_a_user_and_its_helper_are_allowed_exactly_their_lists() {
    if netns::lacks_users() {
        return;
    }
    compare("nobody", &Life::as_unprivileged_user().peer());
    compare("nobody-helper", &Life::as_unprivileged_user().helper());
}

#[test]
fn an_interface_of_a_file_is_allowed_exactly_its_list() {
    let life = Life::up();
    compare("up", &life.peer());
}

#[test]
fn a_proxy_in_process_is_allowed_exactly_its_list() {
    let life = Life::proxy("in-process", "");
    compare("proxy-in-process", &life.peer());
}

#[test]
fn a_proxy_with_a_mark_is_allowed_exactly_its_list() {
    let life = Life::proxy("in-process", "FwMark = 7\n");
    compare("proxy-with-mark", &life.peer());
    // The sweep ends the peer and its helper.
    let life = Life::proxy("in-process", "FwMark = 7\n");
    compare("proxy-helper", &life.helper());
}

#[test]
fn a_proxy_with_the_kernels_stack_and_its_child_are_allowed_exactly_their_lists() {
    compare("proxy-namespace", &Life::proxy("namespace", "").peer());
    // The sweep ends the peer and its child.
    compare("proxy-namespace-child", &Life::proxy("namespace", "").child());
}

#[test]
fn the_helper_is_allowed_exactly_its_list() {
    let life = Life::interface("wg0");
    compare("helper", &life.helper());
}

#[test]
fn the_agent_of_a_member_is_allowed_exactly_its_list() {
    compare("agent", &Life::member().agent());
}

#[test]
fn only_a_server_inherits_the_variables_of_postgresql() {
    let keeps = |life: Life| life.peer().environment().contains("PGSSLMODE=prefer");
    assert!(keeps(Life::server("")) && !keeps(Life::interface("wg0")));
}

#[test]
fn a_member_and_its_steward_inherit_nothing_from_their_caller() {
    let life = Life::member();
    life.peer();
    life.steward();
}

#[test]
fn a_server_is_allowed_exactly_its_list() {
    compare("server", &Life::server("").peer());
    let asks_others =
        "[oidc]\nissuer = \"https://issuer.test\"\nclient_id = \"a\"\nclient_secret = \"b\"\n";
    compare("server-with-outbound-requests", &Life::server(asks_others).peer());
}

/// Compares the abilities of a process with the list of that name.
fn compare(name: &str, confined: &Confined) {
    let status = |field: &str| format!("  {field} {}\n", confined.status(field));
    let rights = RIGHTS.map(status).concat();
    let mut injected = confined.inject();
    let descriptors = descriptors(confined, &mut injected);
    let own = injected.call(libc::SYS_getpid, [0; 6]).expect("getpid is allowed").cast_unsigned();
    if !injected.observe_filters() {
        return netns::skip("root, and a kernel with CONFIG_CHECKPOINT_RESTORE");
    }
    let calls = sweep::sweep(&mut injected, own);
    let found = format!("rights:\n{rights}descriptors:\n{descriptors}{calls}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/e2e/confined/{name}.txt"));
    if env::var_os("LINERATE_BLESS").is_some() {
        fs::write(&path, &found).expect("the list can be written");
    }
    let listed = fs::read_to_string(&path).unwrap_or_default();
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (listed, found) = (lines(&listed), lines(&found));
    let differences = found.difference(&listed).map(|line| format!("+{line}\n"));
    let differences = differences.chain(listed.difference(&found).map(|line| format!("-{line}\n")));
    let differences: String = differences.collect();
    assert!(differences.is_empty(), "{name} differs from its list:\n{differences}");
}

/// The kinds of its open descriptors, each once.
fn descriptors(confined: &Confined, injected: &mut Injected) -> String {
    let mut kinds = BTreeSet::new();
    for (descriptor, target) in confined.descriptors() {
        kinds.insert(match target.starts_with("socket:") {
            true => socket(injected, descriptor),
            false => target.split(':').next().unwrap_or_default().to_owned() + anonymous(&target),
        });
    }
    kinds.iter().map(|kind| format!("  {kind}\n")).collect()
}

/// The name behind the colon, for descriptors without a number.
fn anonymous(target: &str) -> &str {
    target.strip_prefix("anon_inode").unwrap_or_default()
}

fn socket(injected: &mut Injected, descriptor: u64) -> String {
    let wanted = [libc::SO_DOMAIN, libc::SO_TYPE, libc::SO_PROTOCOL, libc::SO_ACCEPTCONN];
    let mut report = [0; 4];
    for (option, report) in wanted.iter().zip(&mut report) {
        injected.clear();
        let (value, length) = (injected.put(&[0; 4]), injected.put(&4u32.to_ne_bytes()));
        let arguments = [descriptor, libc::SOL_SOCKET as u64, *option as u64, value, length, 0];
        match injected.call(libc::SYS_getsockopt, arguments) {
            Ok(_) => *report = u64::from(injected.get(value, 1)[0]),
            Err(error) => return format!("socket (its kind is unknown: {error:?})"),
        }
    }
    let [family, of_type, protocol, listens] = report;
    let listens = if listens == 1 { ", listening" } else { "" };
    format!("socket {} {} {protocol}{listens}", names::domain(family), names::kind(of_type))
}
