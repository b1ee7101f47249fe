//! tailscaled at both ends: near with userspace networking, far with a TUN device. They find each
//! other by a control server of the rig (`bench/testcontrol`), and what is measured goes directly
//! from one to the other, not by its relay.
//!
//! ```text
//!   near: tailscaled                  [link]                far: tailscaled
//!   eth0 10.1.0.1 ---------------- testcontrol ------------ eth0 10.1.0.2 (10.2.0.2)
//! ```
//!
//! Without a link the control server is on far's host.

use std::path::Path;
use std::time::Duration;

use netns::{Host, PORT, eventually};

use super::service::Service;
use super::world::{SOCKS, Wired, World};
use crate::contender::Tailscaled;
use crate::suite::topology::EmulatedLink;

/// Where the control server listens, as bench/testcontrol/main.go has it.
const CONTROL: u16 = 3340;

/// tailscaled's device at the far end.
const DEVICE: &str = "tailscale0";

/// Where a host has its tailscaled's files; they are gone with the host.
const STATE: &str = "/run/rig/tailscale";
const SOCKET: &str = "/run/rig/tailscaled.sock";

/// Within this both know of each other and of a direct way.
const PATIENCE: Duration = Duration::from_secs(60);

/// Of an emulated link, how each end is called by the other, as the control server tells it.
const CALLED: [&str; 2] = ["10.1.0.1=10.2.0.254", "10.2.0.2=10.1.0.254"];

impl World {
    /// tailscaled at both ends.
    ///
    /// # Panics
    /// When they do not meet, or only by their relay.
    pub fn tailscaled(programs: &Tailscaled, shape: Option<&str>) -> World {
        let Wired { near, far, link } = Wired::new(shape);
        let (control, gateways, called) = match &link {
            None => (&far, ["10.1.0.2", "10.1.0.1"], &[][..]),
            Some(link) => (&link.host, EmulatedLink::GATEWAYS, &CALLED[..]),
        };
        let address = gateways[0];
        for (host, gateway) in [(&near, gateways[0]), (&far, gateways[1])] {
            host.run(format!("ip route add default via {gateway}"));
        }
        let program = programs.testcontrol().display().to_string();
        let words = [program.as_str(), address].into_iter().chain(called.iter().copied());
        let server =
            Service::start(control, "testcontrol", words).until(|| control.listens(CONTROL));
        let socks = format!("--socks5-server=127.0.0.1:{SOCKS}");
        let proxy = daemon(&near, programs, &["--tun=userspace-networking", &socks]);
        let other = daemon(&far, programs, &[&format!("--tun={DEVICE}")]);
        let [near_inner, far_inner] =
            [&near, &far].map(|host| join(host, programs.tailscale(), address));
        let world = World {
            client: Some(programs.tailscale().to_owned()),
            link,
            _others: (None, vec![other, server]),
            near,
            far,
            proxy,
            near_inner,
            far_inner,
        };
        world.meets_directly(programs.tailscale());
        world
    }

    fn meets_directly(&self, program: &Path) {
        let ping = format!(
            "{} --socket={SOCKET} ping --until-direct --c=20 --timeout=2s {}",
            program.display(),
            self.near_inner
        );
        eventually("a direct way between both tailscaled", PATIENCE, || self.far.attempt(&ping).ok);
    }

    /// Sees to it that all went directly from one to the other; of linerate, which has no other
    /// way, nothing is asked.
    ///
    /// # Panics
    /// When it did not.
    pub fn was_direct(&self) {
        let Some(client) = &self.client else { return };
        for host in [&self.near, &self.far] {
            let status = host.run(format!("{} --socket={SOCKET} status", client.display()));
            assert!(status.contains("direct "), "no direct way on {}: {status}", host.name());
        }
    }
}

fn daemon(host: &Host, programs: &Tailscaled, more: &[&str]) -> Service {
    let port = format!("--port={PORT}");
    let (state, socket) = (format!("--statedir={STATE}"), format!("--socket={SOCKET}"));
    let environment = [&format!("HOME={STATE}"), "TS_NO_LOGS_NO_SUPPORT=true"];
    let program = programs.tailscaled().display().to_string();
    let words = ["env"].into_iter().chain(environment);
    let words = words.chain([program.as_str(), "--state=mem:", &state, &socket, &port]);
    let words = words.chain(more.iter().copied());
    Service::start(host, "tailscaled", words).until(|| host.has(SOCKET))
}

/// Joins the network of the control server; its address there.
fn join(host: &Host, program: &Path, control: &str) -> String {
    let tailscale = format!("{} --socket={SOCKET}", program.display());
    host.run(format!(
        "{tailscale} up --login-server=http://{control}:{CONTROL} --hostname={} --timeout=30s \
         --accept-dns=false --netfilter-mode=off",
        host.name()
    ));
    host.run(format!("{tailscale} ip -4")).trim().to_owned()
}
