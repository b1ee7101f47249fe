//! The section tests.

use super::{At, NO_POSTURE, Reader};
use crate::{
    alias::{self, Alias, Autogroup},
    model::{Test, TestTarget},
    refusal::{Reason, TestFault},
};

impl Reader {
    pub(super) fn tests(&mut self, at: &At<'_>) {
        for rule in self.list(at) {
            self.test(&rule);
        }
    }

    /// Parses a test: connections from one source to single ports of single machines.
    fn test(&mut self, rule: &At<'_>) {
        let (mut source, mut protocol) = (None, None);
        let (mut accept, mut deny) = (Vec::new(), Vec::new());
        let mut has_posture = false;
        for (name, field) in self.fields(rule) {
            match name.as_str() {
                "src" | "user" => source = Some(field),
                "proto" => protocol = self.optional_text(&field),
                "accept" | "allow" => accept.extend(self.list(&field)),
                "deny" => deny = self.list(&field),
                "srcpostureattrs" => has_posture = self.has_condition(&field, NO_POSTURE),
                _ => self.unknown(&field),
            }
        }
        if accept.is_empty() && deny.is_empty() {
            self.fault(rule, Reason::Test(TestFault::Nothing));
        }
        let number = alias::protocol(protocol.unwrap_or_default()).unwrap_or_else(|_| {
            let name = protocol.unwrap_or_default().to_owned();
            self.fault(rule, Reason::Test(TestFault::Protocol(name)));
            None
        });
        let mut targets = |list: &[At<'_>]| -> Vec<TestTarget> {
            list.iter().filter_map(|at| self.test_target(rule, at, number)).collect()
        };
        let (accept, deny) = (targets(&accept), targets(&deny));
        let Some(source) = self.test_source(rule, source) else { return };
        // Rules with a posture are omitted, so only denials can be tested.
        let accept = if has_posture { Vec::new() } else { accept };
        let location = rule.location();
        self.policy.tests.push(Test { location, source, protocol: number, accept, deny });
    }

    fn test_source(&mut self, rule: &At<'_>, at: Option<At<'_>>) -> Option<Alias> {
        let text =
            at.as_ref().and_then(|at| self.optional_text(at)).map(str::trim).unwrap_or_default();
        let (Some(at), false) = (at, text.is_empty()) else {
            self.fault(rule, Reason::Test(TestFault::NoSource));
            return None;
        };
        match Alias::parse(text) {
            Ok(alias) => {
                self.mention(&at, text, &alias);
                Some(alias)
            }
            Err(reason) if reason.is_unsupported() => {
                self.refuse(&at, reason);
                None
            }
            Err(_) => {
                self.fault(rule, Reason::Test(TestFault::Source(text.into())));
                None
            }
        }
    }

    fn test_target(&mut self, rule: &At<'_>, at: &At<'_>, proto: Option<u8>) -> Option<TestTarget> {
        let text = self.text(at)?;
        let read = alias::split(text).and_then(|(target, port)| Ok((Alias::parse(&target)?, port)));
        let found = match read {
            Ok((alias, port)) => self.port_of_test(text, &alias, port, proto).map(|port| {
                self.mention(at, text, &alias);
                TestTarget { text: text.to_owned(), alias, port }
            }),
            Err(reason) if reason.is_unsupported() => {
                self.refuse(at, reason);
                return None;
            }
            Err(_) => None,
        };
        if found.is_none() {
            self.fault(rule, Reason::Test(TestFault::Target(text.into())));
        }
        found
    }

    /// The port of a single machine. It may be 0 for a protocol without ports.
    fn port_of_test(
        &self,
        text: &str,
        alias: &Alias,
        port: &str,
        proto: Option<u8>,
    ) -> Option<u16> {
        let hosts = &self.policy.hosts;
        let is_single = |net: &ipnet::IpNet| net.prefix_len() == net.max_prefix_len();
        let is_machine = match alias {
            Alias::Net(_) => !text.contains('/'),
            Alias::Host(name) => hosts.get(name).is_some_and(is_single),
            Alias::Auto(Autogroup::Internet) | Alias::Set(_) => false,
            _ => true,
        };
        let number = alias::port(port).ok().filter(|&port| port > 0 || !alias::has_ports(proto));
        number.filter(|_| is_machine)
    }
}
