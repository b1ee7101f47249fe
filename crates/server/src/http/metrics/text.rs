//! The metrics of a server as text.

use std::fmt::Display;

use sys::prometheus::MetricsText;

use crate::{
    network::counters::{Counters, Histogram, STUN},
    tenants::{TenantSlot, Tenants},
};

/// Writes all metrics. `docs/metrics.md` lists them.
pub(super) fn write(tenants: &Tenants) -> String {
    let tenants: Vec<TenantMetrics<'_>> =
        tenants.all().iter().filter_map(|slot| TenantMetrics::new(slot)).collect();
    let mut text = Text::new();
    text.0.head("info", "gauge", "Version of the server.");
    text.0.sample("info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    text.all(&tenants);
    text.0.head("stun_answers_total", "counter", "Answers to STUN requests.");
    text.0.sample("stun_answers_total", &[], STUN.read());
    text.0.into_string()
}

/// Values of a network. The one of the top level has no label, to be compatible with servers of
/// one network.
struct TenantMetrics<'a> {
    network: Option<&'a str>,
    counters: &'a Counters,
    nodes: usize,
    connected: usize,
    users: usize,
}

impl<'a> TenantMetrics<'a> {
    /// `None` if the network has not started.
    fn new(slot: &'a TenantSlot) -> Option<Self> {
        let network = &slot.tenant()?.network;
        let name = slot.name.as_ref().map(|name| name.text());
        let (counters, mut of) = (network.counters(), (0, 0, 0));
        network.read(|state| {
            for node in state.nodes() {
                of.0 += 1;
                of.1 += usize::from(node.online);
            }
            of.2 = state.users().count();
        });
        let (nodes, connected, users) = of;
        Some(Self { network: name, counters, nodes, connected, users })
    }

    /// The labels of the network, and a further one.
    fn labels<'l>(&'l self, more: Option<(&'l str, &'l str)>) -> Vec<(&'l str, &'l str)> {
        self.network.map(|name| ("network", name)).into_iter().chain(more).collect()
    }
}

struct Text(MetricsText);

impl Text {
    fn new() -> Self {
        Self(MetricsText::new("linerate_server_", &[]))
    }

    /// Writes a metric with one sample for each network.
    fn each<V: Display>(
        &mut self,
        all: &[TenantMetrics<'_>],
        (name, kind, help): (&str, &str, &str),
        value: impl Fn(&TenantMetrics<'_>) -> V,
    ) {
        self.0.head(name, kind, help);
        for of in all {
            self.0.sample(name, &of.labels(None), value(of));
        }
    }

    /// Writes a metric with several samples for each network.
    fn labelled<const COUNT: usize>(
        &mut self,
        all: &[TenantMetrics<'_>],
        (name, help, label): (&str, &str, &str),
        values: impl Fn(&TenantMetrics<'_>) -> [(&'static str, u64); COUNT],
    ) {
        self.0.head(name, "counter", help);
        for of in all {
            for (metric, value) in values(of) {
                self.0.sample(name, &of.labels(Some((label, metric))), value);
            }
        }
    }

    fn histogram(
        &mut self,
        all: &[TenantMetrics<'_>],
        name: &str,
        help: &str,
        histogram: impl Fn(&Counters) -> &Histogram,
    ) {
        self.0.head(name, "histogram", help);
        for of in all {
            let histogram = histogram(of.counters);
            let buckets =
                histogram.cumulative().map(|(micros, count)| (micros as f64 / 1e6, count));
            let (count, micros) = histogram.total();
            self.0.histogram(name, &of.labels(None), buckets, (count, micros as f64 / 1e6));
        }
    }

    fn all(&mut self, all: &[TenantMetrics<'_>]) {
        self.each(all, ("nodes", "gauge", "Nodes of the network."), |of| of.nodes);
        self.each(all, ("nodes_connected", "gauge", "Nodes that are connected."), |of| {
            of.connected
        });
        self.each(all, ("users", "gauge", "Users of the network."), |of| of.users);
        self.each(all, ("map_streams", "gauge", "Open map streams."), |of| {
            of.counters.streams.read()
        });
        let metric = ("commands_total", "counter", "Commands that ran on the network.");
        self.each(all, metric, |of| of.counters.commands.read());
        let help = "Durations of committed transactions of the store.";
        self.histogram(all, "commit_seconds", help, |counters| &counters.commits);
        let help = "Transactions repeated after a conflict with another process.";
        let metric = ("commit_conflicts_total", "counter", help);
        self.each(all, metric, |of| of.counters.conflicts.read());
        let help = "Transactions that the store refused. Their commands failed.";
        let metric = ("commit_failures_total", "counter", help);
        self.each(all, metric, |of| of.counters.failures.read());
        let metric = ("store_version", "gauge", "Version of the network.");
        self.each(all, metric, |of| of.counters.version.read());
        self.of_relays(all);
        let metric = ("logins_refused_total", "Refused logins.", "at");
        self.labelled(all, metric, |of| {
            let refused = &of.counters.refused;
            [
                ("machine", refused.machine.read()),
                ("relay", refused.relay.read()),
                ("api", refused.api.read()),
                ("oidc", refused.oidc.read()),
            ]
        });
    }

    fn of_relays(&mut self, all: &[TenantMetrics<'_>]) {
        let metric = ("relay_clients", "gauge", "Connections to the relay.");
        self.each(all, metric, |of| of.counters.relay.clients.read());
        let help = "Datagrams accepted for connected clients.";
        let metric = ("relay_datagrams_total", "counter", help);
        self.each(all, metric, |of| of.counters.relay.datagrams.read());
        let metric = ("relay_bytes_total", "counter", "Bytes of these datagrams.");
        self.each(all, metric, |of| of.counters.relay.bytes.read());
        let metric = ("relay_drops_total", "Datagrams that were not relayed.", "reason");
        self.labelled(all, metric, |of| {
            let relay = &of.counters.relay;
            [("not_here", relay.not_here.read()), ("queue_full", relay.queue_full.read())]
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn of(network: Option<&str>) -> TenantMetrics<'_> {
        TenantMetrics { network, counters: Counters::begin(), nodes: 3, connected: 2, users: 1 }
    }

    #[test]
    fn samples_have_labels_and_durations_are_in_seconds() {
        let mut text = Text::new();
        let metric = ("drops_total", "Lost.", "reason");
        let all = [of(None), of(Some("b"))];
        text.labelled(&all, metric, |_| [("a", 1), ("b", 2)]);
        assert_eq!(
            text.0.as_str(),
            "# HELP linerate_server_drops_total Lost.\n\
             # TYPE linerate_server_drops_total counter\n\
             linerate_server_drops_total{reason=\"a\"} 1\n\
             linerate_server_drops_total{reason=\"b\"} 2\n\
             linerate_server_drops_total{network=\"b\",reason=\"a\"} 1\n\
             linerate_server_drops_total{network=\"b\",reason=\"b\"} 2\n"
        );
        let mut text = Text::new();
        all[1].counters.commits.observe(Duration::from_micros(2_000));
        text.histogram(&all, "t", "T.", |counters| &counters.commits);
        assert!(
            text.0.as_str().contains("linerate_server_t_bucket{le=\"0.0025\"} 0"),
            "{}",
            text.0.as_str()
        );
        let of_other = "linerate_server_t_bucket{network=\"b\",le=\"0.0025\"} 1";
        assert!(text.0.as_str().contains(of_other), "{}", text.0.as_str());
        assert!(
            text.0.as_str().contains("linerate_server_t_bucket{le=\"+Inf\"}"),
            "{}",
            text.0.as_str()
        );
        assert!(
            text.0.as_str().contains("linerate_server_t_count{network=\"b\"} 1"),
            "{}",
            text.0.as_str()
        );
    }

    #[test]
    fn the_manual_lists_every_metric() {
        let manual = include_str!("../../../../../docs/metrics.md");
        let mut text = Text::new();
        text.all(&[of(None)]);
        for line in text.0.as_str().lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let (name, kind) = line.split_once(' ').unwrap();
            let metric = format!("`{name}`");
            let is_documented = |row: &&str| row.contains(&metric) && row.contains(kind);
            assert!(manual.lines().any(|row| is_documented(&row)), "{name}, a {kind}");
        }
    }
}
