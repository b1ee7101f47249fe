//! Two hosts: the near end of the tunnel is a proxy without an interface, the far end has a
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

/// Port of the near end's SOCKS5 proxy.
pub(super) const SOCKS: u16 = 1080;

/// iperf3's own port: the service of the near end.
const SERVICE: u16 = 5201;

/// Both ends, connected.
pub(super) struct World {
    pub near: Host,
    pub far: Host,
    /// The near end's proxy.
    pub proxy: Service,
    /// Addresses in the tunnel.
    pub near_inner: String,
    pub far_inner: String,
    /// The path check of tailscaled; linerate always sends directly.
    pub direct: Option<Direct>,
    pub link: Option<EmulatedLink>,
    pub _others: Others,
}

/// Other processes that run as long as this value exists.
pub(super) type Others = (Option<Daemon>, Vec<Service>);

/// Techniques that the near end does not use.
#[derive(Default)]
pub(super) struct Plain {
    /// Disabled offloads.
    pub without: Option<&'static str>,
    /// The environment variable that disables a technique.
    pub environment: Option<&'static str>,
}

impl World {
    /// A proxy of linerate with this stack, without the techniques in `plain`.
    ///
    /// # Panics
    /// If it does not listen.
    pub(super) fn linerate(
        program: &Program,
        stack: &str,
        plain: &Plain,
        shape: Option<&str>,
    ) -> Self {
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
        let proxy = Service::start(&near, "proxy", words).wait_until(|| near.listens(SOCKS));
        Self {
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

    /// Checks that all traffic was direct.
    ///
    /// # Panics
    /// If it was not.
    pub(super) fn assert_direct(&self) {
        self.direct.iter().for_each(Direct::assert_direct);
    }

    /// tailscaled at both ends: near with userspace networking, far with a TUN device.
    ///
    /// # Panics
    /// If they do not connect, or only through their relay.
    pub(super) fn tailscaled(programs: &Tailscaled, shape: Option<&str>) -> Self {
        let Wired { left: near, right: far, link } = Wired::new(shape);
        let socks = format!("--socks5-server=127.0.0.1:{SOCKS}");
        let words = [&["--tun=userspace-networking", &socks][..], &["--tun=tailscale0"]];
        let Tailnet { daemons, control, addresses, direct } =
            Tailnet::start(programs, [&near, &far], link.as_ref(), &[], words);
        let [near_inner, far_inner] = addresses.map(|one| one.of(Family::V4).to_owned());
        let [proxy, other] = daemons;
        Self {
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
