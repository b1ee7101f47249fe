//! The sections acls, grants and tests.

use std::collections::BTreeMap;

use serde_json::Value;
use tailnet::messages::PortRange;

use super::{At, Reader, Side};
use crate::{
    alias::{self, ANY_PORT, Alias, Autogroup},
    model::{Grant, Packets, Test},
    refusal::{Reason, TestFault},
};

/// Those of Tailscale's own capabilities that a policy may grant.
const OF_TAILSCALE: [&str; 6] = [
    "tailscale.com/cap/drive",
    "tailscale.com/cap/kubernetes",
    "tailscale.com/cap/relay",
    "tailscale.com/cap/secrets",
    "tailscale.com/cap/tsidp",
    "tailscale.com/cap/webui",
];

impl Reader {
    pub(super) fn acls(&mut self, at: &At<'_>) {
        for rule in self.list(at) {
            self.acl(&rule);
        }
    }

    fn acl(&mut self, rule: &At<'_>) {
        let mut sources = Vec::new();
        let mut protocol = String::new();
        let mut has_action = false;
        let mut targets = Vec::new();
        for (name, field) in self.fields(rule) {
            match name.as_str() {
                "action" => {
                    has_action = true;
                    match self.text(&field) {
                        Some("accept") | None => {}
                        Some(other) => self.fault(&field, Reason::Action(other.into())),
                    }
                }
                "proto" => protocol = self.text(&field).unwrap_or_default().to_owned(),
                "src" | "users" => sources = self.aliases(&field, Side::Source),
                "dst" | "ports" => {
                    let list = self.list(&field);
                    targets.extend(list.iter().filter_map(|at| self.target(at)));
                }
                "srcposture" => self.no_posture(&field),
                _ => self.unknown(&field),
            }
        }
        if !has_action {
            self.fault(rule, Reason::Action(String::new()));
        }
        let number = match alias::protocol(&protocol) {
            Ok(number) => number,
            Err(reason) => return self.fault(rule, reason),
        };
        let has_ports = targets.iter().any(|(_, ports): &(_, Vec<_>)| *ports != [ANY_PORT]);
        if has_ports && !alias::has_ports(number) {
            self.fault(rule, Reason::ProtocolHasNoPorts(protocol));
        }
        self.self_sources(rule, &sources, targets.iter().map(|(target, _)| target), true);
        // Tailscale puts autogroup:self behind the others, unless all are autogroups.
        if !targets.iter().all(|(target, _)| matches!(target, Alias::Auto(_))) {
            targets.sort_by_key(|(target, _)| target.is(Autogroup::Itself));
        }
        self.policy.grants.extend(targets.into_iter().map(|(target, ports)| Grant {
            sources: sources.clone(),
            targets: vec![target],
            packets: vec![Packets { protocol: number, ports }],
            capabilities: None,
            via: Vec::new(),
        }));
    }

    fn no_posture(&mut self, at: &At<'_>) {
        self.fault(at, Reason::Unsupported(": there is no device posture"));
    }

    fn target(&mut self, at: &At<'_>) -> Option<(Alias, Vec<PortRange>)> {
        let text = self.text(at)?;
        match alias::target(text) {
            Ok((alias, ports)) => {
                self.defined(at, &alias, &format!("dst={:?}: ", alias.to_string()));
                self.allowed(at, &alias, Side::Target);
                Some((alias, ports))
            }
            Err(reason) => {
                self.fault(at, reason);
                None
            }
        }
    }

    /// What may be beside autogroup:self: everybody in an ACL, but not in a grant.
    fn self_sources<'a>(
        &mut self,
        rule: &At<'_>,
        sources: &[Alias],
        mut targets: impl Iterator<Item = &'a Alias>,
        any: bool,
    ) {
        let is_personal = |source: &Alias| match source {
            Alias::User(_) | Alias::Domain(_) | Alias::Group(_) => true,
            Alias::Auto(Autogroup::Member | Autogroup::Admin | Autogroup::Owner) => true,
            Alias::Any => any,
            _ => false,
        };
        if targets.any(|target| target.is(Autogroup::Itself)) && !sources.iter().all(is_personal) {
            self.fault(rule, Reason::SelfWithSources);
        }
    }

    pub(super) fn grants(&mut self, at: &At<'_>) {
        for rule in self.list(at) {
            let grant = self.grant(&rule);
            self.policy.grants.push(grant);
        }
    }

    fn grant(&mut self, rule: &At<'_>) -> Grant {
        let mut grant = Grant {
            sources: Vec::new(),
            targets: Vec::new(),
            packets: Vec::new(),
            capabilities: None,
            via: Vec::new(),
        };
        for (name, field) in self.fields(rule) {
            match name.as_str() {
                "src" => grant.sources = self.aliases(&field, Side::Source),
                "dst" => grant.targets = self.aliases(&field, Side::Target),
                "ip" => {
                    let list = self.list(&field);
                    grant.packets = list.iter().filter_map(|at| self.packets(at)).collect();
                }
                "app" => grant.capabilities = Some(self.capabilities(&field)),
                "via" => grant.via = self.via(&field),
                "srcposture" => self.no_posture(&field),
                _ => self.unknown(&field),
            }
        }
        let has_app = grant.capabilities.as_ref().is_some_and(|caps| !caps.is_empty());
        if grant.packets.is_empty() && !has_app {
            self.fault(rule, Reason::NeitherIpNorApp);
        }
        for target in &grant.targets {
            match target {
                Alias::Auto(Autogroup::Internet) if has_app => {
                    self.fault(rule, Reason::AppToInternet);
                }
                Alias::Net(net) if net.prefix_len() == 0 => {
                    self.fault(rule, Reason::DefaultRoute(net.to_string()));
                }
                _ => {}
            }
        }
        self.self_sources(rule, &grant.sources, grant.targets.iter(), false);
        grant
    }

    /// `*`, `443`, `tcp:443`, `icmp:*`.
    fn packets(&mut self, at: &At<'_>) -> Option<Packets> {
        let text = self.text(at)?.trim();
        let (name, range) = text.rsplit_once(':').unwrap_or(("", text));
        let ports =
            alias::ports(range).map_err(|fault| Reason::PortsOfRule { ports: range.into(), fault });
        let read = alias::protocol(name).and_then(|protocol| {
            let ports = ports?;
            if ports != [ANY_PORT] && !alias::has_ports(protocol) {
                return Err(Reason::ProtocolHasNoPorts(name.into()));
            }
            Ok(Packets { protocol, ports })
        });
        read.map_err(|reason| self.fault(at, reason)).ok()
    }

    fn capabilities(&mut self, at: &At<'_>) -> BTreeMap<String, Value> {
        let mut capabilities = BTreeMap::new();
        for (name, values) in self.entries(at) {
            if name.contains("://") || !name.contains('/') {
                self.fault(&values, Reason::CapabilityForm);
            } else if name.starts_with("tailscale.com/") && !OF_TAILSCALE.contains(&name) {
                self.fault(&values, Reason::CapabilityDomain);
            }
            let list = self.list(&values).iter().map(|at| at.value.to_json()).collect();
            capabilities.insert(name.to_owned(), Value::Array(list));
        }
        capabilities
    }

    fn via(&mut self, at: &At<'_>) -> Vec<String> {
        let mut tags = Vec::new();
        for tag in self.list(at) {
            let Some(name) = self.text(&tag).map(str::trim) else { continue };
            if !name.starts_with("tag:") {
                self.fault(&tag, Reason::ViaNotTag);
            } else if !self.policy.tag_owners.contains_key(name) {
                self.fault(&tag, Reason::NoViaTag(name.into()));
            } else {
                tags.push(name.to_owned());
            }
        }
        tags
    }

    pub(super) fn tests(&mut self, at: &At<'_>) {
        for rule in self.list(at) {
            let mut test = Test {
                place: rule.place(),
                source: String::new(),
                protocol: None,
                accept: Vec::new(),
                deny: Vec::new(),
            };
            for (name, field) in self.fields(&rule) {
                match name.as_str() {
                    "src" | "user" => {
                        test.source = self.text(&field).unwrap_or_default().trim().to_owned();
                    }
                    "proto" => test.protocol = self.text(&field).map(str::to_owned),
                    "accept" | "allow" => test.accept = self.texts(&field),
                    "deny" => test.deny = self.texts(&field),
                    "srcpostureattrs" => self.no_posture(&field),
                    _ => self.unknown(&field),
                }
            }
            self.test(&rule, &test);
            self.policy.tests.push(test);
        }
    }

    /// A test is one connection: from somebody, to one port of one machine.
    fn test(&mut self, rule: &At<'_>, test: &Test) {
        let mut fault = |fault| {
            self.faults.push(crate::Fault {
                line: rule.value.line,
                key: rule.key.clone(),
                reason: Reason::Test(fault),
            })
        };
        if test.source.is_empty() {
            fault(TestFault::NoSource);
        }
        if test.accept.is_empty() && test.deny.is_empty() {
            fault(TestFault::Nothing);
        }
        if let Some(name) = &test.protocol
            && !alias::protocol(name).is_ok_and(alias::has_ports)
        {
            fault(TestFault::Protocol(name.clone()));
        }
        for target in test.accept.iter().chain(&test.deny) {
            let is_one = match alias::target(target) {
                Ok((alias, ports)) => {
                    let hosts = &self.policy.hosts;
                    let is_single = |net: &ipnet::IpNet| net.prefix_len() == net.max_prefix_len();
                    let is_machine = match &alias {
                        Alias::Net(_) => !target.contains('/'),
                        Alias::Host(name) => hosts.get(name).is_some_and(is_single),
                        Alias::Auto(Autogroup::Internet) | Alias::Set(_) => false,
                        _ => true,
                    };
                    is_machine && matches!(ports[..], [one] if one.first == one.last)
                }
                Err(_) => false,
            };
            if !is_one {
                fault(TestFault::Target(target.clone()));
            }
        }
    }
}
