//! The sections that define names, and those about nodes: groups, hosts, tagOwners, autoApprovers, nodeAttrs.

use ipnet::IpNet;

use super::{At, NO_USER, Reader, Side};
use crate::{
    alias::{self, Alias, NO_SERVICES},
    hujson::Kind,
    model::Attributes,
    refusal::Reason,
};

impl Reader {
    pub(super) fn groups(&mut self, at: &At<'_>) {
        for (name, members) in self.entries(at) {
            if !name.starts_with("group:") {
                self.fault(&members, Reason::GroupName);
            }
            let mut users = Vec::new();
            for member in self.list(&members) {
                let Some(user) = self.text(&member) else { continue };
                match Alias::parse(user) {
                    Ok(Alias::Group(inner)) => {
                        let group = name.into();
                        self.fault(&member, Reason::GroupInGroup { group, member: inner });
                    }
                    Ok(alias @ Alias::User(_)) => {
                        self.mention(&member, user, &alias);
                        users.push(user.trim().to_owned());
                    }
                    _ => self.fault(&member, NO_USER),
                }
            }
            self.policy.groups.insert(name.into(), users);
        }
    }

    pub(super) fn hosts(&mut self, at: &At<'_>) {
        for (name, address) in self.entries(at) {
            if name.is_empty() || name.contains([':', '@']) {
                self.fault(&address, Reason::HostName);
            }
            let Some(text) = self.text(&address) else { continue };
            match alias::net(text.trim()) {
                Some(net) => drop(self.policy.hosts.insert(name.into(), net)),
                None => self.fault(&address, Reason::Address(text.into())),
            }
        }
    }

    pub(super) fn tag_owners(&mut self, at: &At<'_>) {
        let entries = self.entries(at);
        let tags = entries.iter().map(|(tag, _)| ((*tag).to_owned(), Vec::new()));
        self.policy.tag_owners = tags.collect();
        for (tag, owners) in entries {
            match tag.strip_prefix("tag:") {
                None => self.fault(&owners, Reason::TagName(tag.into())),
                Some(name) if !name.starts_with(|first: char| first.is_ascii_alphabetic()) => {
                    self.fault(&owners, Reason::TagNameIn(tag.into()));
                }
                Some(_) => {}
            }
            let owners = self.owners(&owners);
            self.policy.tag_owners.insert(tag.into(), owners);
        }
    }

    /// Parses a list of users, groups, tags and autogroups of users.
    fn owners(&mut self, at: &At<'_>) -> Vec<Alias> {
        let mut owners = Vec::new();
        for owner in self.list(at) {
            match self.alias(&owner, Side::NodeAttribute) {
                Some(Alias::Any | Alias::Host(_) | Alias::Net(_) | Alias::Set(_)) => {
                    self.fault(&owner, Reason::WrongType("a user, a group, a tag or an autogroup"));
                }
                alias => owners.extend(alias),
            }
        }
        owners
    }

    pub(super) fn approvers(&mut self, at: &At<'_>) {
        for (name, section) in self.fields(at) {
            match name.as_str() {
                "routes" => self.route_approvers(&section),
                "exitnode" => self.policy.exit_approvers = self.owners(&section),
                "services" => self.service_approvers(&section),
                _ => self.unknown(&section),
            }
        }
    }

    fn service_approvers(&mut self, at: &At<'_>) {
        let approvers = self.entries(at);
        if approvers.iter().any(|(_, approvers)| !approvers.value.is_empty()) {
            self.unsupported(at, NO_SERVICES);
        }
    }

    fn route_approvers(&mut self, at: &At<'_>) {
        for (net, approvers) in self.entries(at) {
            let owners = self.owners(&approvers);
            match alias::net(net) {
                Some(net) => self.policy.route_approvers.push((net, owners)),
                None => self.fault(&approvers, Reason::Address(net.into())),
            }
        }
    }

    pub(super) fn randomizes(&mut self, at: &At<'_>) {
        match at.value.kind {
            Kind::Bool(yes) => self.policy.randomizes_port = yes,
            Kind::Null => {}
            _ => self.fault(at, Reason::WrongType("true or false")),
        }
    }

    pub(super) fn attributes(&mut self, at: &At<'_>) {
        for rule in self.list(at) {
            let mut read =
                Attributes { targets: Vec::new(), attributes: Vec::new(), pools: Vec::new() };
            for (name, field) in self.fields(&rule) {
                match name.as_str() {
                    "target" => read.targets = self.aliases(&field, Side::NodeAttribute),
                    "attr" => read.attributes = self.texts(&field),
                    "ippool" => read.pools = self.pools(&field),
                    "app" => self.connectors(&field),
                    _ => self.unknown(&field),
                }
            }
            self.policy.attributes.push(read);
        }
    }

    fn connectors(&mut self, at: &At<'_>) {
        if at.value.is_empty() {
            return;
        }
        let apps = self.entries(at);
        if apps.iter().any(|(_, settings)| !settings.value.is_empty()) {
            self.unsupported(at, ": this coordinator does not offer app connectors");
        }
    }

    fn pools(&mut self, at: &At<'_>) -> Vec<IpNet> {
        /// The addresses of nodes, and within them those reserved for MagicDNS and ChromeOS.
        const NODE_ADDRESSES: &str = "100.64.0.0/10";
        const RESERVED: [&str; 2] = ["100.100.100.0/24", "100.115.92.0/23"];
        let mut pools = Vec::new();
        for pool in self.list(at) {
            let Some(text) = self.text(&pool) else { continue };
            let Some(net) = alias::net(text) else {
                self.fault(&pool, Reason::Address(text.into()));
                continue;
            };
            let overlaps =
                |other: &str| alias::net(other).is_some_and(|o| crate::nodes::overlaps(&o, &net));
            if !alias::net(NODE_ADDRESSES).is_some_and(|all| all.contains(&net)) {
                self.fault(&pool, Reason::Pool(text.into()));
            } else if RESERVED.iter().any(|reserved| overlaps(reserved)) {
                self.fault(&pool, Reason::PoolReserved(text.into()));
            } else {
                pools.push(net);
            }
        }
        pools
    }
}
