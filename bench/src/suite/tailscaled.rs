//! Two tailscaled in one network of a control server of the rig (`bench/testcontrol`). The
//! measured traffic is direct and does not use its relay.
//!
//! ```text
//!   near: tailscaled                  [link]                far: tailscaled
//!   eth0 10.1.0.1 ---------------- testcontrol ------------ eth0 10.1.0.2 (10.2.0.2)
//! ```
//!
//! Without a link the control server is on far's host.

use std::path::{Path, PathBuf};
use std::time::Duration;

use netns::{Addresses, Family, Host, PORT, Service, eventually};

use super::topology::EmulatedLink;
use crate::contender::Tailscaled;

/// Port of the control server, as in bench/testcontrol/main.go.
const CONTROL: u16 = 3340;

/// Files of a host's tailscaled, which are removed with the host.
const STATE: &str = "/run/rig/tailscale";
const SOCKET: &str = "/run/rig/tailscaled.sock";

/// Time in which both have a direct path.
const PATIENCE: Duration = Duration::from_secs(60);

/// With an emulated link: the address of each end for the other, which the control server
/// publishes.
const CALLED: [&str; 2] = ["10.1.0.1=10.2.0.254", "10.2.0.2=10.1.0.254"];

/// tailscaled at both ends, connected.
pub(super) struct Tailnet {
    pub daemons: [Service; 2],
    pub control: Service,
    /// Addresses in the tunnel.
    pub addresses: [Addresses; 2],
    pub direct: Direct,
}

/// Checks the path by which both ends send.
pub(super) struct Direct {
    client: PathBuf,
    hosts: [Host; 2],
}

impl Tailnet {
    /// Starts both with these environment variables and further arguments, and joins them.
    ///
    /// # Panics
    /// If they do not connect, or only through their relay.
    pub(super) fn start(
        programs: &Tailscaled,
        hosts: [&Host; 2],
        link: Option<&EmulatedLink>,
        environment: &[&str],
        words: [&[&str]; 2],
    ) -> Self {
        let (at, gateways, called) = match link {
            None => (hosts[1], ["10.1.0.2", "10.1.0.1"], &[][..]),
            Some(link) => (&link.host, EmulatedLink::GATEWAYS, &CALLED[..]),
        };
        for (host, gateway) in hosts.into_iter().zip(gateways) {
            host.run(format!("ip route add default via {gateway}"));
        }
        let program = programs.testcontrol().display().to_string();
        let arguments = [program.as_str(), gateways[0]].into_iter().chain(called.iter().copied());
        let control =
            Service::start(at, "testcontrol", arguments).wait_until(|| at.listens(CONTROL));
        let daemons = [0, 1].map(|end| daemon(hosts[end], programs, environment, words[end]));
        let client = programs.tailscale();
        let addresses = hosts.map(|host| join(host, client, gateways[0]));
        let direct = Direct { client: client.to_owned(), hosts: hosts.map(Host::clone) };
        direct.wait_until_direct(addresses[0].of(Family::V4));
        Self { daemons, control, addresses, direct }
    }
}

impl Direct {
    /// Waits until the far end reaches this address of the near one directly.
    fn wait_until_direct(&self, near: &str) {
        let ping = format!(
            "{} --socket={SOCKET} ping --until-direct --c=20 --timeout=2s {near}",
            self.client.display(),
        );
        eventually("a direct path between both tailscaled", PATIENCE, || {
            self.hosts[1].attempt(&ping).ok
        });
    }

    /// Checks that all traffic was direct.
    ///
    /// # Panics
    /// If it was not.
    pub(super) fn assert_direct(&self) {
        for host in &self.hosts {
            let status = host.run(format!("{} --socket={SOCKET} status", self.client.display()));
            assert!(status.contains("direct "), "no direct path on {}: {status}", host.name());
        }
    }
}

fn daemon(host: &Host, programs: &Tailscaled, environment: &[&str], more: &[&str]) -> Service {
    let port = format!("--port={PORT}");
    let (state, socket) = (format!("--statedir={STATE}"), format!("--socket={SOCKET}"));
    let home = format!("HOME={STATE}");
    let program = programs.tailscaled().display().to_string();
    let words = ["env", &home, "TS_NO_LOGS_NO_SUPPORT=true"].into_iter();
    let words = words.chain(environment.iter().copied());
    let words = words.chain([program.as_str(), "--state=mem:", &state, &socket, &port]);
    let words = words.chain(more.iter().copied());
    Service::start(host, "tailscaled", words).wait_until(|| host.has(SOCKET))
}

/// Joins the network of the control server. Returns the addresses.
fn join(host: &Host, program: &Path, control: &str) -> Addresses {
    let tailscale = format!("{} --socket={SOCKET}", program.display());
    host.run(format!(
        "{tailscale} up --login-server=http://{control}:{CONTROL} --hostname={} --timeout=30s \
         --accept-dns=false --netfilter-mode=off",
        host.name()
    ));
    let [v4, v6] = ["-4", "-6"].map(|family| host.run(format!("{tailscale} ip {family}")));
    Addresses::from_texts(v4.trim(), v6.trim())
}
