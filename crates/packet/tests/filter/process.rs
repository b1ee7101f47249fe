//! Tailscale's own filter, which `tests/filter-oracle` runs.

use std::{
    env,
    fmt::Write as _,
    io::{BufRead, BufReader, Write as _},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use proptest::prelude::*;

use crate::{
    any,
    bytes::{Packet, Transport},
};

/// Tailscale's filter in a process of its own.
pub struct Oracle {
    process: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Oracle {
    /// It, where `tests/netns/peers` built it.
    pub fn start() -> Option<Self> {
        let home = || PathBuf::from(env::var_os("HOME").unwrap_or_default()).join(".cache");
        let cache = || env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from);
        let peers = env::var_os("LINERATE_PEERS").map(PathBuf::from);
        let program = peers.unwrap_or_else(|| cache().join("linerate-peers"));
        let program = program.join("bin/filter-oracle");
        if !program.is_file() {
            skips::skip("filter-oracle");
            return None;
        }
        let mut process =
            Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let questions = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Some(Self { process, questions, answers })
    }

    pub fn ask(&mut self, verb: &str, rest: &str) -> String {
        writeln!(self.questions, "{verb} {rest}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }

    /// From now on by this policy, which is JSON.
    pub fn set(&mut self, policy: &str) {
        assert_eq!(self.ask("policy", policy), "ok");
    }

    pub fn send(&mut self, packet: &[u8]) {
        assert_eq!(self.ask("out", &hex(packet)), "ok");
    }

    pub fn accepts(&mut self, packet: &[u8]) -> bool {
        self.receives("in", packet)
    }

    /// Whether it accepts a packet, of a peer that may begin something (`in`) or not (`jailed`).
    pub fn receives(&mut self, verb: &str, packet: &[u8]) -> bool {
        match &*self.ask(verb, &hex(packet)) {
            "accept" => true,
            "drop" => false,
            other => panic!("unknown answer {other:?}"),
        }
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// A packet on which both mean to agree: not of IPv4's type 12, which is a parameter problem
/// that Tailscale takes for another, nor of 18, which it takes for that; and no fragment of
/// its own protocol.
pub fn packet() -> impl Strategy<Value = Packet> {
    any::packet().prop_map(|mut packet| {
        match packet.transport {
            Transport::Icmp { kind: kind @ (12 | 18), code } => {
                packet.transport = Transport::Icmp { kind: kind - 1, code };
            }
            Transport::Other(99) => packet.fragment = None,
            _ => {}
        }
        packet
    })
}
