//! Two tailscaled that are joined to one network: they find each other by a control server of the rig
//! (`bench/testcontrol`), and what is measured goes directly from one to the other, not by its relay.
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

/// Where the control server listens, as bench/testcontrol/main.go has it.
const CONTROL: u16 = 3340;

/// Where a host has its tailscaled's files; they are gone with the host.
const STATE: &str = "/run/rig/tailscale";
const SOCKET: &str = "/run/rig/tailscaled.sock";

/// Within this both know of each other and of a direct way.
const PATIENCE: Duration = Duration::from_secs(60);

/// Of an emulated link, how each end is called by the other, as the control server tells it.
const CALLED: [&str; 2] = ["10.1.0.1=10.2.0.254", "10.2.0.2=10.1.0.254"];

/// tailscaled at both ends, met.
pub(super) struct Tailnet {
    pub daemons: [Service; 2],
    pub control: Service,
    /// How each is called in the tunnel.
    pub addresses: [Addresses; 2],
    pub direct: Direct,
}

/// What tells by which way both ends send.
pub(super) struct Direct {
    client: PathBuf,
    hosts: [Host; 2],
}

impl Tailnet {
    /// Starts both with these variables, and further words each, and joins them.
    ///
    /// # Panics
    /// When they do not meet, or only by their relay.
    pub fn start(
        programs: &Tailscaled,
        hosts: [&Host; 2],
        link: Option<&EmulatedLink>,
        environment: &[&str],
        words: [&[&str]; 2],
    ) -> Tailnet {
        let (at, gateways, called) = match link {
            None => (hosts[1], ["10.1.0.2", "10.1.0.1"], &[][..]),
            Some(link) => (&link.host, EmulatedLink::GATEWAYS, &CALLED[..]),
        };
        for (host, gateway) in hosts.into_iter().zip(gateways) {
            host.run(format!("ip route add default via {gateway}"));
        }
        let program = programs.testcontrol().display().to_string();
        let arguments = [program.as_str(), gateways[0]].into_iter().chain(called.iter().copied());
        let control = Service::start(at, "testcontrol", arguments).until(|| at.listens(CONTROL));
        let daemons = [0, 1].map(|end| daemon(hosts[end], programs, environment, words[end]));
        let client = programs.tailscale();
        let addresses = hosts.map(|host| join(host, client, gateways[0]));
        let direct = Direct { client: client.to_owned(), hosts: hosts.map(Host::clone) };
        direct.comes(addresses[0].of(Family::V4));
        Tailnet { daemons, control, addresses, direct }
    }
}

impl Direct {
    /// Waits until the far end reaches this address of the near one directly.
    fn comes(&self, near: &str) {
        let ping = format!(
            "{} --socket={SOCKET} ping --until-direct --c=20 --timeout=2s {near}",
            self.client.display(),
        );
        eventually("a direct way between both tailscaled", PATIENCE, || {
            self.hosts[1].attempt(&ping).ok
        });
    }

    /// Sees to it that all went directly from one to the other.
    ///
    /// # Panics
    /// When it did not.
    pub fn has_stayed(&self) {
        for host in &self.hosts {
            let status = host.run(format!("{} --socket={SOCKET} status", self.client.display()));
            assert!(status.contains("direct "), "no direct way on {}: {status}", host.name());
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
    Service::start(host, "tailscaled", words).until(|| host.has(SOCKET))
}

/// Joins the network of the control server; its addresses there.
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
