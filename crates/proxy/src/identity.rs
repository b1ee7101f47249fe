//! The addresses of a stack in its tunnel, and the names that need no DNS query. A configuration file
//! sets them once; a tailnet may change them while the stack runs.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{PoisonError, RwLock},
};

/// The addresses and the known names of a stack.
#[derive(Debug, Default)]
pub struct Identity(RwLock<Entries>);

#[derive(Debug, Default)]
struct Entries {
    addresses: Vec<IpAddr>,
    /// Names in lower case without a dot at the end.
    names: HashMap<String, Vec<IpAddr>>,
    /// Domains that are appended to a short name. All of their names are in `names`.
    search: Vec<String>,
}

impl Identity {
    /// The identity of a stack with these addresses and without names.
    pub fn new(addresses: Vec<IpAddr>) -> Self {
        let identity = Self::default();
        identity.set(addresses, [], Vec::new());
        identity
    }

    /// Replaces the addresses, names and search domains.
    pub fn set(
        &self,
        addresses: Vec<IpAddr>,
        names: impl IntoIterator<Item = (String, Vec<IpAddr>)>,
        search: Vec<String>,
    ) {
        let names =
            names.into_iter().map(|(name, addresses)| (normalized(&name), addresses)).collect();
        let search = search.iter().map(|domain| normalized(domain)).collect();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) =
            Entries { addresses, names, search };
    }

    /// Whether this is an address of the stack.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.read(|entries| entries.addresses.contains(&address))
    }

    /// Whether the stack has an address of this family.
    pub(super) fn has_family(&self, is_v6: bool) -> bool {
        self.read(|entries| entries.addresses.iter().any(|address| address.is_ipv6() == is_v6))
    }

    /// The addresses of a name; `None` if it needs a DNS query. All names below the search domains are
    /// known: for an unknown one there the list is empty.
    pub(super) fn addresses_of(&self, name: &str) -> Option<Vec<IpAddr>> {
        let name = normalized(name);
        self.read(|entries| {
            let longer = entries.search.iter().map(|domain| format!("{name}.{domain}"));
            let longer = longer.filter(|_| !name.contains('.'));
            let mut candidates = longer.chain([name.clone()]);
            let found = candidates.find_map(|name| entries.names.get(&name).cloned());
            let is_below = |domain: &String| {
                name.strip_suffix(domain.as_str()).is_some_and(|rest| rest.ends_with('.'))
            };
            found.or_else(|| entries.search.iter().any(is_below).then(Vec::new))
        })
    }

    fn read<T>(&self, read: impl FnOnce(&Entries) -> T) -> T {
        read(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

fn normalized(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_resolve_short_and_long_and_unknown_names_in_their_domain_are_empty() {
        let identity = Identity::default();
        let desk: Vec<IpAddr> = vec![[100, 64, 0, 2].into()];
        let names = [("Desk.home.example.".to_owned(), desk.clone())];
        identity.set(vec![[100, 64, 0, 1].into()], names, vec!["home.example".into()]);
        for name in ["desk", "DESK.home.example", "desk.home.example."] {
            assert_eq!(identity.addresses_of(name), Some(desk.clone()), "{name}");
        }
        assert_eq!(identity.addresses_of("gone.home.example"), Some(Vec::new()));
        assert_eq!(identity.addresses_of("example.com"), None);
        assert!(identity.has([100, 64, 0, 1].into()) && !identity.has(desk[0]));
        assert!(identity.has_family(false) && !identity.has_family(true));
        identity.set(Vec::new(), [], Vec::new());
        assert!(identity.addresses_of("desk").is_none() && !identity.has_family(false));
    }
}
