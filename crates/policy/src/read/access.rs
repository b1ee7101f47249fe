//! The sections acls and grants.

use std::collections::BTreeMap;

use serde_json::Value;
use tailnet::map_messages::PortRange;

use super::{At, NO_POSTURE, Reader, Side};
use crate::{
    alias::{self, ANY_PORT, Alias, Autogroup},
    model::{Grant, Packets},
    refusal::Reason,
};

/// The capabilities of Tailscale that a policy may grant. Clients use some of them; programs read the
/// others from `whois`.
const OF_TAILSCALE: [&str; 12] = [
    "tailscale.com/cap/aperture",
    "tailscale.com/cap/databases",
    "tailscale.com/cap/drive",
    "tailscale.com/cap/golink",
    "tailscale.com/cap/kubernetes",
    "tailscale.com/cap/pam",
    "tailscale.com/cap/proxy-to-grafana",
    "tailscale.com/cap/relay",
    "tailscale.com/cap/secrets",
    "tailscale.com/cap/tailsql",
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
        let mut is_left_out = false;
        for (name, field) in self.fields(rule) {
            match name.as_str() {
                "action" => {
                    let action = self.optional_text(&field);
                    has_action = action.is_some();
                    if let Some(other) = action.filter(|action| *action != "accept") {
                        self.fault(&field, Reason::Action(other.into()));
                    }
                }
                "proto" => protocol = self.optional_text(&field).unwrap_or_default().to_owned(),
                "src" | "users" => sources = self.aliases(&field, Side::Source),
                "dst" | "ports" => {
                    let list = self.list(&field);
                    targets.extend(list.iter().filter_map(|at| self.target(at)));
                }
                "srcposture" => is_left_out |= self.has_condition(&field, NO_POSTURE),
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
        if is_left_out {
            return;
        }
        // Tailscale moves autogroup:self to the end, unless all targets are autogroups.
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

    fn target(&mut self, at: &At<'_>) -> Option<(Alias, Vec<PortRange>)> {
        let text = self.text(at)?;
        match alias::target(text) {
            Ok((alias, ports)) => {
                self.mention(at, text, &alias);
                self.defined(at, &alias, &format!("dst={:?}: ", alias.to_string()));
                self.allowed(at, &alias, Side::Target);
                Some((alias, ports))
            }
            Err(reason) => {
                self.refuse(at, reason);
                None
            }
        }
    }

    /// Checks the sources of a rule for autogroup:self. `*` is allowed in an ACL, but not in a grant.
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
            self.policy.grants.extend(grant);
        }
    }

    /// Parses a grant. Returns `None` if it has an unsupported condition.
    fn grant(&mut self, rule: &At<'_>) -> Option<Grant> {
        let mut grant = Grant {
            sources: Vec::new(),
            targets: Vec::new(),
            packets: Vec::new(),
            capabilities: None,
            via: Vec::new(),
        };
        let mut is_left_out = false;
        for (name, field) in self.fields(rule) {
            match name.as_str() {
                "src" => grant.sources = self.aliases(&field, Side::Source),
                "dst" => grant.targets = self.aliases(&field, Side::Target),
                "ip" => {
                    let list = self.list(&field);
                    grant.packets = list.iter().filter_map(|at| self.packets(at)).collect();
                }
                "app" if field.value.is_empty() => {}
                "app" => grant.capabilities = Some(self.capabilities(&field)),
                "via" => grant.via = self.via(&field),
                "srcposture" => is_left_out |= self.has_condition(&field, NO_POSTURE),
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
        (!is_left_out).then_some(grant)
    }

    /// Parses protocol and ports: `*`, `443`, `tcp:443`, `icmp:*`, `*:443`.
    fn packets(&mut self, at: &At<'_>) -> Option<Packets> {
        let text = self.text(at)?.trim();
        let (name, range) = text.rsplit_once(':').unwrap_or(("", text));
        let ports =
            alias::ports(range).map_err(|fault| Reason::PortsOfRule { ports: range.into(), fault });
        let protocol = alias::protocol(if name == "*" { "" } else { name });
        let read = protocol.and_then(|protocol| {
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
}
