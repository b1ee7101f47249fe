//! The capabilities of peers in addition to sending packets (`tailcfg.CapGrant`). This module does
//! not interpret them.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use ipnet::IpNet;
use tailnet::{map_messages::CapGrant, raw_json::Json};

use super::{ParseAddressesError, Problem, Problems, Read, address_set::AddressSet, range};

/// The capabilities of peers at this node.
#[derive(Clone, Debug, Default)]
pub struct Grants(Vec<Grant>);

#[derive(Clone, Debug)]
struct Grant {
    sources: Arc<AddressSet>,
    destinations: Vec<IpNet>,
    /// The names, and lists of values.
    capabilities: Vec<(String, Option<Json>)>,
}

impl Grants {
    /// Collects the grants for local destinations.
    pub(super) fn new(rules: &[Read<'_>], local: &AddressSet, problems: &mut Problems) -> Self {
        let mut grants = Vec::new();
        let granting = |rule: &Read<'_>| !rule.rule.grants.is_empty() && !rule.sources.is_empty();
        for (index, rule) in rules.iter().enumerate().filter(|(_, rule)| granting(rule)) {
            let sources = Arc::new(rule.sources.clone());
            for grant in &rule.rule.grants {
                let mut destinations = destinations(grant, index, problems);
                destinations.retain(|net| range(net).is_some_and(|net| local.overlaps_range(net)));
                if !destinations.is_empty() {
                    let (sources, capabilities) = (sources.clone(), capabilities(grant));
                    grants.push(Grant { sources, destinations, capabilities });
                }
            }
        }
        Self(grants)
    }

    /// Returns the capabilities of a source at an address of this node, with their values
    /// (`wgengine/filter/filter.go`, `CapsWithValues`).
    pub fn between(&self, source: IpAddr, destination: IpAddr) -> BTreeMap<String, Vec<Json>> {
        let mut granted = BTreeMap::<String, Vec<Json>>::new();
        for (name, values) in self.capabilities(source, destination) {
            let values = values.iter().filter_map(|list| list.read::<Vec<Json>>().ok());
            granted.entry(name.clone()).or_default().extend(values.flatten());
        }
        granted
    }

    /// Returns whether a source has a capability at an address of this node.
    pub fn has(&self, source: IpAddr, destination: IpAddr, capability: &str) -> bool {
        self.capabilities(source, destination).any(|(name, _)| name == capability)
    }

    /// Yields a capability once for each matching destination.
    fn capabilities(
        &self,
        source: IpAddr,
        destination: IpAddr,
    ) -> impl Iterator<Item = &(String, Option<Json>)> {
        let from_source =
            self.0.iter().filter(move |grant| grant.sources.overlaps_range(source.into()));
        from_source.flat_map(move |grant| {
            let has = grant.destinations.iter().filter(move |net| net.contains(&destination));
            has.flat_map(|_| &grant.capabilities)
        })
    }

    /// Returns whether no peer has a capability.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn destinations(grant: &CapGrant, index: usize, problems: &mut Problems) -> Vec<IpNet> {
    let mut destinations = Vec::new();
    for text in &grant.destinations {
        match text.parse() {
            Ok(net) => destinations.push(net),
            Err(_) => problems.push(Problem::Grant(index, ParseAddressesError::malformed(text))),
        }
    }
    destinations
}

/// Empty names are ignored.
fn capabilities(grant: &CapGrant) -> Vec<(String, Option<Json>)> {
    let plain = grant.caps.iter().map(|name| (name.clone(), None));
    let with_values =
        grant.cap_map.iter().map(|(name, values)| (name.clone(), Some(values.clone())));
    plain.chain(with_values).filter(|(name, _)| !name.is_empty()).collect()
}
