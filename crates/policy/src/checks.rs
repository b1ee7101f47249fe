//! The sections tests and sshTests, run against a network.

use std::net::IpAddr;

use ipnet::IpNet;
use tailnet::messages::PortRange;

use crate::{
    alias::{self, Alias, Autogroup},
    compile::{Compiled, Target, What},
    model::{Place, Policy, SshTest, Test},
    nodes::{Nodes, overlaps},
    refusal::{Fault, Reason, Refusal, TestFault},
    resolve::{Names, Resolved},
    set::NodeSet,
    ssh::{SshRule, local_domain},
};

impl Policy {
    /// What only a network can tell of a policy: whether its tests pass, and its mail domains are
    /// the network's.
    pub fn run_tests(&self, nodes: &Nodes) -> Result<(), Refusal> {
        let names = Names { policy: self, nodes };
        let compiled = self.compile(nodes);
        let mut run = Run { names, compiled: &compiled, faults: Vec::new() };
        run.domains();
        self.tests.iter().for_each(|test| run.test(test));
        self.ssh_tests.iter().for_each(|test| run.ssh_test(test));
        let mut faults = run.faults;
        if faults.is_empty() {
            return Ok(());
        }
        faults.sort_by_key(|fault| fault.line);
        Err(Refusal { faults })
    }
}

struct Run<'a> {
    names: Names<'a>,
    compiled: &'a Compiled,
    faults: Vec<Fault>,
}

impl Run<'_> {
    fn fault(&mut self, place: &Place, reason: Reason) {
        self.faults.push(Fault { line: place.line, key: place.key.clone(), reason });
    }

    fn domains(&mut self) {
        let domains = &self.names.nodes.domains;
        let is_ours = |domain: &str| domains.is_empty() || domains.iter().any(|own| own == domain);
        for rule in &self.names.policy.ssh {
            let aliases = rule.sources.iter().filter_map(|alias| match alias {
                Alias::Domain(domain) => Some((domain.as_str(), true)),
                _ => None,
            });
            let users = rule.users.iter().filter_map(|user| local_domain(user));
            for (domain, is_alias) in aliases.chain(users.map(|domain| (domain, false))) {
                if !is_ours(domain) {
                    let domain = domain.into();
                    self.fault(&rule.place, Reason::Domain { domain, is_alias });
                }
            }
        }
    }

    fn test(&mut self, test: &Test) {
        let alias = Alias::parse(&test.source);
        let sources = alias.map(|alias| self.addresses(&self.names.resolve([&alias])));
        let sources = match sources {
            Ok(sources) if !sources.is_empty() => sources,
            _ => {
                let reason = Reason::Test(TestFault::Source(test.source.clone()));
                return self.fault(&test.place, reason);
            }
        };
        let wanted = test.accept.iter().map(|target| (target, true));
        for (text, wanted) in wanted.chain(test.deny.iter().map(|target| (target, false))) {
            let found = self.reaches(&sources, text, test.protocol.as_deref());
            let (source, target) = (test.source.clone(), text.clone());
            let fault = match found {
                None => TestFault::Target(target),
                Some(reaches) if reaches == wanted => continue,
                Some(true) => TestFault::Allowed { source, target },
                Some(false) => TestFault::Denied { source, target },
            };
            self.fault(&test.place, Reason::Test(fault));
        }
    }

    /// Its addresses as networks, those of nodes singly.
    fn addresses(&self, of: &Resolved) -> Vec<IpNet> {
        let nodes = &self.names.nodes.nodes;
        let places = if of.is_any { NodeSet::all(nodes.len()) } else { of.nodes.clone() };
        let own = places.iter().flat_map(|place| &nodes[place].addresses);
        own.map(|&address| address.into()).chain(of.nets.iter().copied()).collect()
    }

    /// Whether all of the sources reach the target; none if nothing is there.
    fn reaches(&self, sources: &[IpNet], target: &str, protocol: Option<&str>) -> Option<bool> {
        let (alias, ports) = alias::target(target).ok()?;
        let targets = self.addresses(&self.names.resolve([&alias]));
        let &[ports] = &ports[..] else { return None };
        if targets.is_empty() {
            return None;
        }
        let protocol = alias::protocol(protocol.unwrap_or_default()).ok()?;
        Some(sources.iter().all(|source| self.passes(source, &targets, ports, protocol)))
    }

    fn passes(
        &self,
        source: &IpNet,
        targets: &[IpNet],
        ports: PortRange,
        protocol: Option<u8>,
    ) -> bool {
        self.compiled.edges.iter().any(|edge| {
            let What::Packets { to, packets, is_via: false } = &edge.what else { return false };
            let is_spoken = match (protocol, packets.protocol) {
                (_, None) => true,
                (None, Some(one)) => matches!(one, 1 | 6 | 17 | 58),
                (Some(one), Some(other)) => one == other,
            };
            let is_open = |open: &PortRange| open.first <= ports.first && ports.last <= open.last;
            let is_target = |net: &IpNet| to.iter().any(|target| self.is_at(target, net));
            is_spoken
                && packets.ports.iter().any(is_open)
                && edge.texts.iter().any(|text| has(text, source))
                && targets.iter().any(is_target)
        })
    }

    fn is_at(&self, target: &Target, net: &IpNet) -> bool {
        let nodes = &self.names.nodes.nodes;
        match target {
            Target::Any => true,
            Target::Internet => false,
            Target::Net(other) => overlaps(other, net),
            Target::Nodes(set) => set.iter().any(|place| nodes[place].is_in(net)),
        }
    }

    fn ssh_test(&mut self, test: &SshTest) {
        let source = test.source.to_string();
        let resolved = self.names.resolve([&test.source]);
        let from = self.names.members(&resolved);
        let nodes = &self.names.nodes.nodes;
        if from.is_empty() {
            return self.fault(&test.place, Reason::Test(TestFault::Source(source)));
        }
        let mut to = NodeSet::default();
        for alias in &test.targets {
            let targets = self.ssh_targets(alias, &test.source);
            if targets.is_empty() {
                let fault = TestFault::Target(alias.to_string());
                self.fault(&test.place, Reason::Test(fault));
            }
            to.add(&targets);
        }
        let addresses: Vec<IpAddr> = from
            .iter()
            .flat_map(|place| nodes[place].addresses.iter().copied())
            .filter(|address| from.iter().any(|place| resolved.has(place, address)))
            .collect();
        for node in to.iter() {
            let rules = self.compiled.ssh(node, "");
            let at = &nodes[node].name;
            let all = |user: &str, checked: bool| {
                addresses.iter().all(|address| may(&rules, address, user, checked))
            };
            let any =
                |user: &str| addresses.iter().any(|address| may(&rules, address, user, false));
            let named = |user: &str| (source.clone(), format!("{user}@{at}"));
            let mut faults = Vec::new();
            for user in test.accept.iter().filter(|user| !all(user, false)) {
                let (source, target) = named(user);
                faults.push(TestFault::Denied { source, target });
            }
            for user in test.deny.iter().filter(|user| any(user)) {
                let (source, target) = named(user);
                faults.push(TestFault::Allowed { source, target });
            }
            for user in test.check.iter().filter(|user| !all(user, true)) {
                let (source, target) = named(user);
                faults.push(TestFault::NotChecked { source, target });
            }
            for fault in faults {
                self.fault(&test.place, Reason::Test(fault));
            }
        }
    }

    fn ssh_targets(&self, alias: &Alias, source: &Alias) -> NodeSet {
        match (alias, source) {
            (Alias::Auto(Autogroup::Itself), Alias::User(_)) => self.names.resolve([source]).nodes,
            (Alias::Auto(Autogroup::Itself), _) => NodeSet::default(),
            _ => self.names.members(&self.names.resolve([alias])),
        }
    }
}

/// Whether an address may log in as a user.
fn may(rules: &[SshRule], address: &IpAddr, user: &str, checked: bool) -> bool {
    let address = address.to_string();
    rules.iter().any(|rule| {
        let users = &rule.ssh_users;
        let by_name = users.get(user).or_else(|| users.get("*").filter(|_| user != "root"));
        !user.is_empty()
            && by_name.is_some_and(|account| !account.is_empty())
            && (!checked || !rule.action.accept)
            && rule.principals.iter().any(|principal| principal.node_ip == address)
    })
}

/// Whether a filter's source has addresses of a network.
pub(crate) fn has(source: &str, net: &IpNet) -> bool {
    if source == "*" {
        return true;
    }
    if let Some((first, last)) = source.split_once('-') {
        let ends = first.parse::<IpAddr>().ok().zip(last.parse::<IpAddr>().ok());
        return ends.is_some_and(|(first, last)| {
            first.is_ipv4() == net.addr().is_ipv4()
                && first <= net.broadcast()
                && net.network() <= last
        });
    }
    alias::net(source).is_some_and(|source| overlaps(&source, net))
}
