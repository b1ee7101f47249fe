//! Two hosts: a near end of the tunnel that is a proxy, without an interface, and a far one with a
//! TUN device.
//!
//! ```text
//!   near: SOCKS5 127.0.0.1:1080                               far
//!         10.9.0.1:5201 -> iperf3 on 127.0.0.1:5201           wg0  10.9.0.2
//!   eth0 10.1.0.1  -------- cable, or a link -------------    eth0 10.1.0.2 (10.2.0.2)
//! ```

use netns::{Addresses, Daemon, Family, Host, INTERFACE, Key, PORT, Program, Service, configure};

use crate::contender::Tailscaled;
use crate::suite::tailscaled::{Direct, Tailnet};
use crate::suite::topology::{EmulatedLink, Wired};

/// Where the near end listens as a SOCKS5 proxy.
pub(super) const SOCKS: u16 = 1080;

/// iperf3's own port: the service of the near end.
const SERVICE: u16 = 5201;

/// Both ends, met.
pub(super) struct World {
    pub near: Host,
    pub far: Host,
    /// The near end's proxy.
    pub proxy: Service,
    /// How each is called in the tunnel.
    pub near_inner: String,
    pub far_inner: String,
    /// By which way it sends, which of linerate, that has no other, is not asked.
    pub direct: Option<Direct>,
    pub link: Option<EmulatedLink>,
    pub _others: Others,
}

/// What else runs for as long as it is kept.
pub(super) type Others = (Option<Daemon>, Vec<Service>);

/// What the near end goes without, to see what it is worth.
#[derive(Default)]
pub(super) struct Plain {
    /// Offloads.
    pub without: Option<&'static str>,
    /// What it is denied by its environment.
    pub environment: Option<&'static str>,
}

impl World {
    /// A proxy of linerate with this stack, and as plain as it is told to be.
    ///
    /// # Panics
    /// When it does not listen.
    pub fn linerate(program: &Program, stack: &str, plain: &Plain, shape: Option<&str>) -> World {
        let wired = Wired::new(shape);
        let [calls_far, calls_near] = wired.outer().map(|one| one.endpoint(Family::V4, PORT));
        let Wired { left: near, right: far, link } = wired;
        let daemon = Daemon::start(&far, program.clone(), INTERFACE);
        let (far_key, far_inner) = configure(&far, 2);
        let (near_key, near_inner) = (Key::generate(), Addresses::new(9, 1));
        let (near_inner, far_inner) = (near_inner.of(Family::V4), far_inner.of(Family::V4));
        far.run(format!(
            "wg set {INTERFACE} peer {} allowed-ips {near_inner}/32 endpoint {calls_near}",
            near_key.public
        ));
        let conf = format!(
            "[Interface]\nPrivateKey = {}\nListenPort = {PORT}\nAddress = {near_inner}/24\n\
             Socks5 = 127.0.0.1:{SOCKS}\n\
             Expose = tcp {near_inner}:{SERVICE} -> 127.0.0.1:{SERVICE}\n\
             [Peer]\nPublicKey = {}\nEndpoint = {calls_far}\nAllowedIPs = {far_inner}/32\n",
            near_key.private, far_key.public
        );
        let conf = near.write("wg0.conf", &conf);
        let path = program.path.display().to_string();
        let mut words = vec!["env".to_owned()];
        words.extend(plain.environment.map(str::to_owned));
        words.extend([path, "proxy".to_owned(), format!("--stack={stack}")]);
        words.extend(plain.without.map(|names| format!("--offload-off={names}")));
        words.push(conf);
        let proxy = Service::start(&near, "proxy", words).until(|| near.listens(SOCKS));
        World {
            near_inner: near_inner.to_owned(),
            far_inner: far_inner.to_owned(),
            direct: None,
            link,
            _others: (Some(daemon), Vec::new()),
            near,
            far,
            proxy,
        }
    }

    /// Sees to it that all went directly from one end to the other.
    ///
    /// # Panics
    /// When it did not.
    pub fn was_direct(&self) {
        self.direct.iter().for_each(Direct::has_stayed);
    }

    /// tailscaled at both ends: near with userspace networking, far with a TUN device.
    ///
    /// # Panics
    /// When they do not meet, or only by their relay.
    pub fn tailscaled(programs: &Tailscaled, shape: Option<&str>) -> World {
        let Wired { left: near, right: far, link } = Wired::new(shape);
        let socks = format!("--socks5-server=127.0.0.1:{SOCKS}");
        let words = [&["--tun=userspace-networking", &socks][..], &["--tun=tailscale0"]];
        let Tailnet { daemons, control, addresses, direct } =
            Tailnet::start(programs, [&near, &far], link.as_ref(), &[], words);
        let [near_inner, far_inner] = addresses.map(|one| one.of(Family::V4).to_owned());
        let [proxy, other] = daemons;
        World {
            direct: Some(direct),
            link,
            _others: (None, vec![other, control]),
            near,
            far,
            proxy,
            near_inner,
            far_inner,
        }
    }
}
