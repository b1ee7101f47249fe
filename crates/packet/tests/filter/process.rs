//! Runs Tailscale's own filter by `tests/filter-oracle`.

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

/// Tailscale's filter in a separate process.
pub(crate) struct Oracle {
    process: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Oracle {
    /// Starts the process. Returns `None` if `tests/netns/peers` did not build it.
    pub(crate) fn start() -> Option<Self> {
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

    pub(crate) fn request(&mut self, verb: &str, rest: &str) -> String {
        writeln!(self.questions, "{verb} {rest}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }

    /// Sets the policy, in JSON.
    pub(crate) fn set(&mut self, policy: &str) {
        assert_eq!(self.request("policy", policy), "ok");
    }

    pub(crate) fn send(&mut self, packet: &[u8]) {
        assert_eq!(self.request("out", &hex(packet)), "ok");
    }

    pub(crate) fn accepts(&mut self, packet: &[u8]) -> bool {
        self.receives("in", packet)
    }

    /// Whether it accepts a packet from a peer that may open flows (`in`) or may not (`jailed`).
    pub(crate) fn receives(&mut self, verb: &str, packet: &[u8]) -> bool {
        match &*self.request(verb, &hex(packet)) {
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

/// Packets on which both filters must agree. Excluded are fragments of Tailscale's own protocol and
/// IPv4 ICMP of type 12 and type 18: type 12 is the parameter problem, and Tailscale's filter has
/// the wrong number 18.
pub(crate) fn packet() -> impl Strategy<Value = Packet> {
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
