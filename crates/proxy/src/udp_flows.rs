//! The table of the UDP flows of one socket. If it is full, a flow of the source with the most flows is
//! evicted, so that no client blocks another.

use std::{
    cmp::Reverse,
    collections::HashMap,
    net::{IpAddr, SocketAddr},
};

/// The flows of one socket, by the client's address and port.
#[derive(Debug)]
pub(super) struct Flows<F> {
    limit: usize,
    flows: HashMap<SocketAddr, Entry<F>>,
    shares: HashMap<IpAddr, usize>,
    /// The number of the last use; the numbers give the order of uses.
    uses: u64,
}

#[derive(Debug)]
struct Entry<F> {
    flow: F,
    number: u64,
    last_use: u64,
}

impl<F> Flows<F> {
    /// A table of at most `limit` flows.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, flows: HashMap::new(), shares: HashMap::new(), uses: 0 }
    }

    /// Returns a client's flow and marks it as used.
    pub(crate) fn find(&mut self, client: SocketAddr) -> Option<&F> {
        let entry = self.flows.get_mut(&client)?;
        self.uses += 1;
        entry.last_use = self.uses;
        Some(&entry.flow)
    }

    /// Adds a flow of a client without one. `make` receives the number to remove it by. Returns the
    /// evicted flow if the table was full.
    pub(crate) fn insert(&mut self, client: SocketAddr, make: impl FnOnce(u64) -> F) -> Option<F> {
        let out =
            if self.flows.len() < self.limit { None } else { self.longest_unused(client.ip()) };
        let out = out.and_then(|client| self.take(client));
        self.uses += 1;
        let number = self.uses;
        self.flows.insert(client, Entry { flow: make(number), number, last_use: number });
        *self.shares.entry(client.ip()).or_default() += 1;
        out
    }

    /// Removes a client's flow if it still has this number.
    pub(crate) fn remove(&mut self, client: SocketAddr, number: u64) {
        if self.flows.get(&client).is_some_and(|entry| entry.number == number) {
            self.take(client);
        }
    }

    /// The least recently used flow of the sources with the most flows. If the newcomer is one of
    /// these sources, a flow of that source.
    fn longest_unused(&self, newcomer: IpAddr) -> Option<SocketAddr> {
        let share = |client: &SocketAddr| self.shares.get(&client.ip()).copied();
        let order = |(client, entry): &(&SocketAddr, &Entry<F>)| {
            (Reverse(share(client)), client.ip() != newcomer, entry.last_use)
        };
        self.flows.iter().min_by_key(order).map(|(client, _)| *client)
    }

    fn take(&mut self, client: SocketAddr) -> Option<F> {
        let entry = self.flows.remove(&client)?;
        if let Some(share) = self.shares.get_mut(&client.ip()) {
            *share -= 1;
            if *share == 0 {
                self.shares.remove(&client.ip());
            }
        }
        Some(entry.flow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(source: u8, port: u16) -> SocketAddr {
        ([10, 0, 0, source], port).into()
    }

    /// Adds a client's flow. Returns the one that was evicted.
    fn insert(flows: &mut Flows<SocketAddr>, client: SocketAddr) -> Option<SocketAddr> {
        flows.insert(client, |_| client)
    }

    #[test]
    fn least_recently_used_flow_of_the_largest_source_is_evicted() {
        let mut flows = Flows::new(8);
        for port in 0..6 {
            assert_eq!(insert(&mut flows, client(1, port)), None);
        }
        assert_eq!(insert(&mut flows, client(2, 0)), None);
        assert_eq!(insert(&mut flows, client(2, 1)), None);
        assert!(flows.find(client(1, 0)).is_some());
        assert_eq!(insert(&mut flows, client(3, 0)), Some(client(1, 1)));
        assert_eq!(
            insert(&mut flows, client(1, 6)),
            Some(client(1, 2)),
            "the largest source evicts its own flow"
        );
        assert_eq!(insert(&mut flows, client(2, 2)), Some(client(1, 3)));
        assert_eq!(insert(&mut flows, client(2, 3)), Some(client(1, 4)));
        assert!(flows.find(client(3, 0)).is_some());
        assert_eq!(flows.flows.len(), 8);
    }

    #[test]
    fn newcomer_evicts_its_own_flow_if_all_sources_have_equally_many() {
        let mut flows = Flows::new(8);
        for (port, source) in (0..8).map(|port| (port, port as u8 % 4)) {
            insert(&mut flows, client(source, port));
        }
        for source in 0..4 {
            let out = insert(&mut flows, client(source, 8)).map(|client| client.ip());
            assert_eq!(out, Some(client(source, 0).ip()));
        }
    }

    #[test]
    fn idle_flow_is_evicted_before_busy_flows_of_equal_sources() {
        let mut flows = Flows::new(9);
        for source in 1..=9 {
            insert(&mut flows, client(source, 0));
        }
        for busy in [1, 2, 3, 4, 6, 7, 8, 9] {
            assert!(flows.find(client(busy, 0)).is_some());
        }
        assert_eq!(insert(&mut flows, client(10, 0)), Some(client(5, 0)));
    }

    #[test]
    fn evicted_flow_does_not_remove_its_successor() {
        let mut flows = Flows::new(1);
        let mut numbers = Vec::new();
        flows.insert(client(1, 1), |number| numbers.push(number));
        flows.insert(client(1, 2), |number| numbers.push(number));
        flows.insert(client(1, 1), |number| numbers.push(number));
        flows.remove(client(1, 1), numbers[0]);
        assert!(flows.find(client(1, 1)).is_some());
        flows.remove(client(1, 1), numbers[2]);
        assert!(flows.flows.is_empty() && flows.shares.is_empty());
    }
}
