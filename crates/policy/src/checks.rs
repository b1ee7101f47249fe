//! The sections tests and sshTests, run against a network.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use tailnet::map_messages::PortRange;

use crate::{
    alias::{self, Alias, Autogroup, ICMP, ICMP6, TCP, UDP, has_ports},
    compile::{Compiled, EdgeKind, Target},
    filter::INTERNET,
    model::{Location, Packets, Policy, SshTest, Test},
    nodes::{Node, Nodes, overlaps},
    refusal::{Fault, Reason, Refusal, TestFault},
    resolve::{Names, Resolved},
    set::NodeSet,
    ssh::{SshRule, local_domain},
};

impl Policy {
    /// Checks what depends on the network: that the policy's tests pass, and that its mail domains belong to
    /// the network.
    pub fn run_tests(&self, nodes: &Nodes) -> Result<(), Refusal> {
        let nodes = &self.with_tested(nodes);
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

impl Policy {
    /// The network, with an imaginary machine for each tested tag and user without a machine, so that
    /// tests of them can pass and fail.
    fn with_tested(&self, nodes: &Nodes) -> Nodes {
        let tested = self.tests.iter().flat_map(|test| {
            let targets = test.accept.iter().chain(&test.deny).map(|target| &target.alias);
            targets.chain([&test.source])
        });
        let logins =
            self.ssh_tests.iter().flat_map(|test| test.targets.iter().chain([&test.source]));
        let mut all = nodes.clone();
        for alias in tested.chain(logins) {
            match alias {
                Alias::Tag(tag) if self.tag_owners.contains_key(tag) => {
                    add_machine(&mut all, Node { tags: vec![tag.clone()], ..Node::default() });
                }
                Alias::User(name) => add_machine_of(&mut all, name),
                Alias::Group(group) => {
                    let members = self.groups.get(group).into_iter().flatten();
                    members.for_each(|name| add_machine_of(&mut all, name));
                }
                _ => {}
            }
        }
        all
    }
}

fn add_machine_of(nodes: &mut Nodes, user: &str) {
    if let Some(user) = nodes.user(user).map(|user| user.id) {
        add_machine(nodes, Node { user: Some(user), ..Node::default() });
    }
}

/// Adds a machine of this user or tag at an unused address, unless there is one.
fn add_machine(nodes: &mut Nodes, machine: Node) {
    let is_like = |node: &Node| match machine.tags.first() {
        Some(tag) => node.tags.contains(tag),
        None => node.is_personal() && node.user == machine.user,
    };
    if nodes.nodes.iter().any(|node| !node.is_vacant() && is_like(node)) {
        return;
    }
    let used: BTreeSet<IpAddr> =
        nodes.nodes.iter().flat_map(|node| node.addresses.iter().copied()).collect();
    let is_free = |pair: &[IpAddr; 2]| pair.iter().all(|address| !used.contains(address));
    let Some(addresses) = (0..u16::MAX).map(tested_at).find(is_free) else { return };
    let user = nodes.users.iter().find(|user| Some(user.id) == machine.user);
    let owner = machine.tags.first().or(user.map(|user| &user.name));
    let name = format!("a machine of {}", owner.map_or("no user", String::as_str));
    nodes.nodes.push(Node { name, addresses: addresses.into(), ..machine });
}

/// Addresses of imaginary machines, from the end of the range.
fn tested_at(number: u16) -> [IpAddr; 2] {
    let v4 = Ipv4Addr::from_bits(Ipv4Addr::new(100, 127, 255, 254).to_bits() - u32::from(number));
    let v6 = Ipv6Addr::new(0xfd7a, 0x115c, 0xa1e0, 0xffff, 0xffff, 0xffff, 0xffff, number);
    [v4.into(), v6.into()]
}

struct Run<'a> {
    names: Names<'a>,
    compiled: &'a Compiled,
    faults: Vec<Fault>,
}

impl Run<'_> {
    fn fault(&mut self, location: &Location, reason: Reason) {
        self.faults.push(Fault { line: location.line, key: location.key.clone(), reason });
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
                    self.fault(&rule.location, Reason::Domain { domain, is_alias });
                }
            }
        }
    }

    fn test(&mut self, test: &Test) {
        let sources = self.addresses(&self.names.resolve([&test.source]));
        let source = test.source.to_string();
        if sources.is_empty() {
            return self.fault(&test.location, Reason::Test(TestFault::Source(source)));
        }
        let accept = test.accept.iter().map(|target| (target, true));
        for (target, is_accepted) in accept.chain(test.deny.iter().map(|target| (target, false))) {
            let targets = self.addresses(&self.names.resolve([&target.alias]));
            let (source, text) = (source.clone(), target.text.clone());
            let reaches =
                |source: &IpNet| self.passes(source, &targets, target.port, test.protocol);
            let fault = match is_accepted {
                _ if targets.is_empty() => TestFault::Target(text),
                true if sources.iter().all(reaches) => continue,
                true => TestFault::Denied { source, target: text },
                false if !sources.iter().any(reaches) => continue,
                false => TestFault::Allowed { source, target: text },
            };
            self.fault(&test.location, Reason::Test(fault));
        }
    }

    /// The resolved addresses as networks; each node address is a single-address network.
    fn addresses(&self, of: &Resolved) -> Vec<IpNet> {
        let nodes = &self.names.nodes.nodes;
        let indices = if of.is_any { NodeSet::all(nodes.len()) } else { of.nodes.clone() };
        let own = indices.iter().flat_map(|index| &nodes[index].addresses);
        own.map(|&address| address.into()).chain(of.nets.iter().copied()).collect()
    }

    /// Whether the rules allow a source to reach one of the targets. The routers of a target do not have to
    /// exist.
    fn passes(&self, source: &IpNet, targets: &[IpNet], port: u16, protocol: Option<u8>) -> bool {
        self.compiled.edges.iter().any(|edge| {
            let EdgeKind::Packets { to, packets, is_via } = &edge.kind else { return false };
            let is_target = |net: &IpNet| to.iter().any(|target| self.is_at(target, net, *is_via));
            opens(packets, port, protocol)
                && edge.texts.iter().any(|text| has(text, source))
                && targets.iter().any(is_target)
        })
    }

    fn is_at(&self, target: &Target, net: &IpNet, is_via: bool) -> bool {
        let nodes = &self.names.nodes.nodes;
        match target {
            Target::Any => !is_via,
            Target::Internet => INTERNET.iter().any(|range| has(range, net)),
            Target::Net(other) => overlaps(other, net),
            Target::Nodes(set) => !is_via && set.iter().any(|index| nodes[index].is_in(net)),
        }
    }

    fn ssh_test(&mut self, test: &SshTest) {
        let source = test.source.to_string();
        let resolved = self.names.resolve([&test.source]);
        let from = self.names.members(&resolved);
        let nodes = &self.names.nodes.nodes;
        if from.is_empty() {
            return self.fault(&test.location, Reason::Test(TestFault::Source(source)));
        }
        let mut to = NodeSet::default();
        for alias in &test.targets {
            let targets = self.ssh_targets(alias, &test.source);
            if targets.is_empty() {
                let fault = TestFault::Target(alias.to_string());
                self.fault(&test.location, Reason::Test(fault));
            }
            to.union_with(&targets);
        }
        let addresses: Vec<IpAddr> = from
            .iter()
            .flat_map(|index| nodes[index].addresses.iter().copied())
            .filter(|address| from.iter().any(|index| resolved.has(index, address)))
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
                self.fault(&test.location, Reason::Test(fault));
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

/// Whether packets of this port and protocol are allowed. A rule that allows any packet also allows pings.
fn opens(packets: &Packets, port: u16, protocol: Option<u8>) -> bool {
    let is_protocol = match (protocol, packets.protocol) {
        (Some(ICMP | ICMP6), _) => return !packets.ports.is_empty(),
        (Some(one), Some(other)) => one == other,
        (None, Some(one)) => matches!(one, TCP | UDP),
        (Some(one), None) => matches!(one, TCP | UDP),
        (None, None) => true,
    };
    let is_open = |open: &PortRange| (open.first..=open.last).contains(&port);
    is_protocol && (!has_ports(protocol) || packets.ports.iter().any(is_open))
}

/// Whether a filter's source contains addresses of a network.
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
