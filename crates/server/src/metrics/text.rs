//! The text format of Prometheus
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>).

use std::fmt::{Display, Write};

use crate::{
    counted::{Counted, STUN, Times},
    networks::{Networks, Place},
};

/// Every counter of the server. `docs/metrics.md` changes with this.
pub fn write(networks: &Networks) -> String {
    let of_networks: Vec<Of<'_>> =
        networks.all().iter().filter_map(|place| Of::new(place)).collect();
    let mut text = Text::default();
    text.head("info", "gauge", "What runs: its version.");
    text.sample("info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    text.all(&of_networks);
    text.head("stun_answers_total", "counter", "Answers to STUN.");
    text.sample("stun_answers_total", &[], STUN.read());
    text.0
}

/// What is told of a network. That of the top level has no label, as it had before there were others.
struct Of<'a> {
    network: Option<&'a str>,
    counted: &'a Counted,
    nodes: usize,
    connected: usize,
    users: usize,
}

impl<'a> Of<'a> {
    /// None: it has not begun.
    fn new(place: &'a Place) -> Option<Self> {
        let network = &place.server()?.network;
        let name = place.name.as_ref().map(|name| name.text());
        let (counted, mut of) = (network.counted(), (0, 0, 0));
        network.read(|state| {
            for node in state.nodes() {
                of.0 += 1;
                of.1 += usize::from(node.online);
            }
            of.2 = state.users().count();
        });
        let (nodes, connected, users) = of;
        Some(Self { network: name, counted, nodes, connected, users })
    }

    /// Its labels, and this.
    fn labels<'l>(&'l self, more: Option<(&'l str, &'l str)>) -> Vec<(&'l str, &'l str)> {
        self.network.map(|name| ("network", name)).into_iter().chain(more).collect()
    }
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(
            self.0,
            "# HELP linerate_server_{name} {help}\n# TYPE linerate_server_{name} {kind}"
        );
    }

    /// One sample. The labels' values are ours: none has to be escaped.
    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.0, "linerate_server_{name}");
        for (place, (label, of)) in labels.iter().enumerate() {
            let _ = write!(self.0, "{}{label}=\"{of}\"", if place == 0 { "{" } else { "," });
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    /// One sample of each network.
    fn each<V: Display>(
        &mut self,
        all: &[Of<'_>],
        (name, kind, help): (&str, &str, &str),
        value: impl Fn(&Of<'_>) -> V,
    ) {
        self.head(name, kind, help);
        for of in all {
            self.sample(name, &of.labels(None), value(of));
        }
    }

    /// Several of each.
    fn labelled<const COUNT: usize>(
        &mut self,
        all: &[Of<'_>],
        (name, help, label): (&str, &str, &str),
        values: impl Fn(&Of<'_>) -> [(&'static str, u64); COUNT],
    ) {
        self.head(name, "counter", help);
        for of in all {
            for (told, value) in values(of) {
                self.sample(name, &of.labels(Some((label, told))), value);
            }
        }
    }

    fn times(
        &mut self,
        all: &[Of<'_>],
        name: &str,
        help: &str,
        times: impl Fn(&Counted) -> &Times,
    ) {
        self.head(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        for of in all {
            let times = times(of.counted);
            for (micros, count) in times.up_to() {
                let bound = (micros as f64 / 1e6).to_string();
                self.sample(&bucket, &of.labels(Some(("le", &bound))), count);
            }
            let (count, micros) = times.total();
            self.sample(&bucket, &of.labels(Some(("le", "+Inf"))), count);
            self.sample(&format!("{name}_sum"), &of.labels(None), micros as f64 / 1e6);
            self.sample(&format!("{name}_count"), &of.labels(None), count);
        }
    }

    fn all(&mut self, all: &[Of<'_>]) {
        self.each(all, ("nodes", "gauge", "Nodes of the network."), |of| of.nodes);
        self.each(all, ("nodes_connected", "gauge", "Nodes that are connected."), |of| {
            of.connected
        });
        self.each(all, ("users", "gauge", "Users of the network."), |of| of.users);
        self.each(all, ("map_streams", "gauge", "Streams of maps."), |of| {
            of.counted.streams.read()
        });
        let told = ("commands_total", "counter", "Commands run on the network.");
        self.each(all, told, |of| of.counted.commands.read());
        let help = "Transactions of the store, until they are kept.";
        self.times(all, "commit_seconds", help, |counted| &counted.commits);
        let help = "Transactions that were made anew behind another process's.";
        let told = ("commit_conflicts_total", "counter", help);
        self.each(all, told, |of| of.counted.conflicts.read());
        let help = "Transactions that the store refused; their commands failed.";
        let told = ("commit_failures_total", "counter", help);
        self.each(all, told, |of| of.counted.failures.read());
        let told = ("store_version", "gauge", "The network's version.");
        self.each(all, told, |of| of.counted.version.read());
        self.of_relays(all);
        let told = ("logins_refused_total", "Logins that were refused.", "at");
        self.labelled(all, told, |of| {
            let refused = &of.counted.refused;
            [
                ("machine", refused.machine.read()),
                ("relay", refused.relay.read()),
                ("api", refused.api.read()),
                ("oidc", refused.oidc.read()),
            ]
        });
    }

    fn of_relays(&mut self, all: &[Of<'_>]) {
        let told = ("relay_clients", "gauge", "Connections to the relay.");
        self.each(all, told, |of| of.counted.relay.clients.read());
        let help = "Datagrams taken for clients that are connected.";
        let told = ("relay_datagrams_total", "counter", help);
        self.each(all, told, |of| of.counted.relay.datagrams.read());
        let told = ("relay_bytes_total", "counter", "Their bytes.");
        self.each(all, told, |of| of.counted.relay.bytes.read());
        let told = ("relay_drops_total", "Datagrams not relayed.", "reason");
        self.labelled(all, told, |of| {
            let relay = &of.counted.relay;
            [("not_here", relay.not_here.read()), ("queue_full", relay.queue_full.read())]
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn of(network: Option<&str>) -> Of<'_> {
        Of { network, counted: Counted::begin(), nodes: 3, connected: 2, users: 1 }
    }

    #[test]
    fn a_sample_has_its_labels_and_times_are_told_in_seconds() {
        let mut text = Text::default();
        let told = ("drops_total", "Lost.", "reason");
        let all = [of(None), of(Some("b"))];
        text.labelled(&all, told, |_| [("a", 1), ("b", 2)]);
        assert_eq!(
            text.0,
            "# HELP linerate_server_drops_total Lost.\n\
             # TYPE linerate_server_drops_total counter\n\
             linerate_server_drops_total{reason=\"a\"} 1\n\
             linerate_server_drops_total{reason=\"b\"} 2\n\
             linerate_server_drops_total{network=\"b\",reason=\"a\"} 1\n\
             linerate_server_drops_total{network=\"b\",reason=\"b\"} 2\n"
        );
        let mut text = Text::default();
        all[1].counted.commits.note(Duration::from_micros(2_000));
        text.times(&all, "t", "T.", |counted| &counted.commits);
        assert!(text.0.contains("linerate_server_t_bucket{le=\"0.0025\"} 0"), "{}", text.0);
        let of_other = "linerate_server_t_bucket{network=\"b\",le=\"0.0025\"} 1";
        assert!(text.0.contains(of_other), "{}", text.0);
        assert!(text.0.contains("linerate_server_t_bucket{le=\"+Inf\"}"), "{}", text.0);
        assert!(text.0.contains("linerate_server_t_count{network=\"b\"} 1"), "{}", text.0);
    }

    #[test]
    fn the_manual_names_every_counter() {
        let manual = include_str!("../../../../docs/metrics.md");
        let mut text = Text::default();
        text.all(&[of(None)]);
        for line in text.0.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let (name, kind) = line.split_once(' ').unwrap();
            let told = format!("`{name}`");
            let is_told = |row: &&str| row.contains(&told) && row.contains(kind);
            assert!(manual.lines().any(|row| is_told(&row)), "{name}, a {kind}");
        }
    }
}
