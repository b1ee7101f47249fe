//! What wg-quick(8) does around a peer: addresses, MTU, routes, rules, DNS and
//! hooks; and taking them away again.

mod dns;
mod firewall;
mod guardian;
mod hooks;
mod ledger;
mod nft;
mod offers;
mod records;
mod router;
mod routes;
mod rules;
mod saved;
mod standing;
mod turn;

use std::{
    collections::HashMap,
    fs, io,
    net::{SocketAddr, ToSocketAddrs},
    path::PathBuf,
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::Context;
use ipnet::IpNet;
use sys::{
    clock,
    netlink::{Event, FwMark, Netlink, NetlinkError},
    process::Helper,
};

use crate::{
    Node,
    conf::{Conf, EndpointName},
    daemon::{Voice, delete_link},
    server::{SocketFile, socket_path},
};
pub use guardian::{Guard, Heard, rehearse};
use guardian::{Guardian, Word};
use ledger::{Deed, Ledger};
use nft::Ruleset;
pub(crate) use nft::dropping_chains;
pub(crate) use offers::Offers;
use routes::{MainRoutes, OwnTable, Routes};
use rules::KeptRules;
pub use standing::Gone;
pub(crate) use standing::gone;
pub(crate) use turn::Turn;
pub use turn::outside_hooks;

/// What the outer headers and our own take of the path's MTU: IPv6 40, UDP 8,
/// data header 16, tag 16.
const OVERHEAD: u32 = 80;
/// The path's MTU where nothing tells.
const ETHERNET_MTU: u32 = 1500;
/// `EACCES` of Linux.
const EACCES: i32 = 13;
/// How often a name is asked for while the network is not ready yet, with a
/// pause that doubles (wg(8) does likewise).
const RESOLVE_TRIES: u32 = 6;
/// The first pause.
const RESOLVE_PAUSE: Duration = Duration::from_millis(250);

/// A configuration that is brought up.
pub(crate) struct Up {
    path: PathBuf,
    conf: Conf,
    name: String,
    /// Where the peers are.
    endpoints: HashMap<EndpointName, SocketAddr>,
    netlink: Netlink,
    ledger: Ledger,
    routes: MainRoutes,
    rules: KeptRules,
    /// Whether it came up: only then there is something to save, and hooks for
    /// going down have something to undo.
    complete: bool,
    /// Who does for us what going down takes beside the peer.
    guardian: Option<Guardian>,
    /// Whether the interface was moved to another namespace at any time: its addresses and routes
    /// are gone since, and what becomes of them there is not ours to say.
    has_left: bool,
    /// Who adds and deletes its routes and rules once it is confined.
    helper: Option<Arc<Helper>>,
    turn: &'static Turn,
}

impl Up {
    /// # Errors
    /// The file is not one to bring up, or somebody else's turn does not end.
    pub fn new(path: PathBuf, conf: Conf, name: &str, turn: &'static Turn) -> anyhow::Result<Self> {
        conf.without_proxy()?;
        conf.without_writable_hooks()?;
        let hooks = &conf.interface.hooks;
        if hooks.pre_up.is_empty() && hooks.post_up.is_empty() {
            conf.private_key()?;
        }
        for warning in &conf.warnings {
            tracing::warn!("{warning}");
        }
        let (ledger, netlink) = (Ledger::open(name)?, Netlink::open()?);
        let (name, routes, rules) = (name.to_owned(), MainRoutes::default(), KeptRules::default());
        let (endpoints, complete, guardian, helper) = (HashMap::new(), false, None, None);
        Ok(Self {
            path,
            conf,
            name,
            endpoints,
            netlink,
            ledger,
            routes,
            rules,
            complete,
            guardian,
            has_left: false,
            helper,
            turn,
        })
    }

    /// What is told of it as of a router.
    pub fn offers(&self) -> Offers {
        Offers(self.conf.interface.router.offered.clone())
    }

    /// Whether the file wants the MTU of paths to be searched for.
    pub fn path_mtu(&self) -> Option<bool> {
        self.conf.interface.path_mtu
    }

    /// Does what comes before there is an interface. What a process left that was
    /// killed is taken back.
    pub fn prepare(&mut self) -> anyhow::Result<()> {
        self.ledger.undo(&self.netlink);
        hooks::run("PreUp", &self.conf.interface.hooks.pre_up, &self.name)
    }

    /// Asks for the names of endpoints. To be called while all of the host's files are in
    /// reach: which of them tell of names changes while the network comes up.
    ///
    /// # Errors
    /// A name has no address, or nobody answers for long.
    pub fn resolve_endpoints(&mut self) -> anyhow::Result<()> {
        for name in self.conf.peers.iter().filter_map(|peer| peer.endpoint.as_ref()) {
            self.endpoints.insert(name.clone(), resolve(name)?);
        }
        Ok(())
    }

    /// Does everything that the file says, in wg-quick's order. After an error,
    /// [`Up::bring_down`] takes back what was done.
    pub fn bring_up(&mut self, node: &Node) -> anyhow::Result<()> {
        let change = self.conf.change(|name| anyhow::Ok(self.endpoints[name]))?;
        self.conf.forget_secrets();
        node.apply(change).context("configuration")?;
        let interface = &self.conf.interface;

        let index = node.info().index;
        for address in &interface.addresses {
            self.netlink
                .add_address(index, *address)
                .map_err(|error| why_refused(error, &self.name, *address))
                .with_context(|| format!("Address = {address}"))?;
        }
        let mtu = match interface.mtu {
            Some(mtu) => mtu.into(),
            None => {
                let endpoints: Vec<_> = self.endpoints.values().copied().collect();
                tunnel_mtu(&self.netlink, &endpoints, node.fwmark())?
            }
        };
        self.netlink.set_mtu(index, mtu).with_context(|| format!("MTU = {mtu}"))?;
        node.set_mtu(mtu);
        // Before the first datagram: an answer to one without a mark would be lost.
        let own = OwnTable::choose(&self.netlink, node, &self.conf)?;
        self.filter(own.map(|own| own.mark))?;
        let interface = &self.conf.interface;
        self.netlink.set_up(index).context("setting the interface up")?;
        node.link_up().context("UDP socket")?;
        if !interface.dns.servers.is_empty() || !interface.dns.search_domains.is_empty() {
            dns::set(&self.name, &interface.dns, &mut self.ledger).context("DNS")?;
        }
        let (netlink, conf, ledger) = (&self.netlink, &self.conf, &mut self.ledger);
        self.routes = Routes { netlink, conf, ledger, device: index, own }.add()?;
        router::forward(&self.conf.interface.router, &mut self.ledger)?;
        complain(router::tell_uncoalesced(&self.conf.interface.router, &self.netlink));
        self.post_up()?;
        self.complete = true;
        Ok(())
    }

    /// Runs PostUp. What rules it deletes, the file does without.
    fn post_up(&mut self) -> anyhow::Result<()> {
        let hooks = &self.conf.interface.hooks.post_up;
        if hooks.is_empty() {
            return Ok(());
        }
        let before = rules::missing(&self.ledger, &self.netlink)?;
        hooks::run("PostUp", hooks, &self.name)?;
        let mut deleted = rules::missing(&self.ledger, &self.netlink)?;
        deleted.retain(|rule| !before.contains(rule));
        self.ledger.strike_rules(&deleted)
    }

    /// Leaves to a guardian what going down takes beside the peer, where it takes anything:
    /// hooks, what is written down, and the file. To be called when it is up, while there are
    /// rights to hand on.
    ///
    /// # Errors
    /// There is no guardian to be had.
    pub fn guard(&mut self, index: u32, voice: Voice) -> anyhow::Result<()> {
        let interface = &self.conf.interface;
        let hooks = &interface.hooks;
        let is_plain = hooks.pre_down.is_empty() && hooks.post_down.is_empty();
        if is_plain && self.ledger.is_empty() && !interface.save_config {
            return Ok(());
        }
        self.turn.share().context("its lock")?;
        let charge = guardian::charge((&self.name, index), &self.path, interface);
        self.guardian = Some(Guardian::start(&charge, voice).context("guardian")?);
        Ok(())
    }

    /// Leaves to a helper, where there is one, what it says of its routes and rules from now on.
    ///
    /// # Errors
    /// It is gone.
    pub fn leave_to(&mut self, helper: Option<Arc<Helper>>) -> io::Result<()> {
        if let Some(helper) = &helper {
            helper.tell(&self.routes.networks(), &self.ledger.rules().collect::<Vec<_>>())?;
        }
        self.helper = helper;
        Ok(())
    }

    /// Another network may be connected now, or one no more; or somebody deleted rules.
    pub fn handle_event(&mut self, event: Event, own: u32) {
        if self.has_left {
            return;
        }
        let concerns = match event {
            Event::AddressesChanged | Event::Lost => true,
            Event::LinkUp { index } | Event::LinkDown { index } | Event::LinkDeleted { index } => {
                index != own
            }
            Event::MtuChanged { .. } | Event::RoutesChanged | Event::RulesChanged => false,
        };
        if matches!(event, Event::RulesChanged | Event::Lost) {
            self.keep_rules();
        }
        if concerns {
            complain(self.routes.settle((&self.netlink, self.helper.as_deref()), own));
        }
    }

    /// The interface was moved to another namespace.
    pub fn leave(&mut self) {
        self.has_left = true;
    }

    /// Puts back what rules are missing, but not too soon behind the last time.
    pub fn keep_rules(&mut self) {
        let now = clock::boottime_nanos();
        let by = (&self.netlink, self.helper.as_deref());
        complain(self.rules.settle(&self.ledger, by, now));
    }

    /// After how long [`Up::keep_rules`] is to be called, where it left something.
    pub fn rules_wait(&self) -> Option<Duration> {
        self.rules.wait(clock::boottime_nanos()).filter(|_| !self.has_left)
    }

    /// Sets the packet filter: of a full tunnel, where our datagrams have a mark, and of
    /// a router.
    fn filter(&mut self, mark: Option<FwMark>) -> anyhow::Result<()> {
        let interface = &self.conf.interface;
        let mut rules = Ruleset::new(&self.name);
        router::add_rules(&mut rules, &self.name, &interface.router);
        let is_router = !rules.is_empty();
        if let Some(mark) = mark {
            firewall::add_rules(&mut rules, &self.name, &interface.addresses, mark);
        }
        if rules.is_empty() {
            return Ok(());
        }
        self.ledger.note(Deed::Table)?;
        let Err(error) = rules.apply() else { return Ok(()) };
        // All or nothing was set.
        self.ledger.strike()?;
        // A tunnel works without; what a router keeps from peers is not optional.
        if is_router {
            return Err(error.context("OfferRoutes"));
        }
        tracing::warn!("no packet filter for the full tunnel: {error:#}");
        Ok(())
    }

    /// Takes everything back, and goes on whatever fails. `home` is the interface's index where it
    /// is in this namespace.
    pub fn bring_down(&mut self, node: &Node, home: Option<u32>) {
        if self.complete {
            complain(match &mut self.guardian {
                Some(guardian) => guardian.tell(Word::PreDown),
                None => hooks::run("PreDown", &self.conf.interface.hooks.pre_down, &self.name),
            });
            if self.conf.interface.save_config {
                complain(self.save(node));
            }
        }
        node.link_down();
        if let Some(index) = home
            && let Err(error) = delete_link(node, &self.netlink, index)
        {
            tracing::error!(%error, "deleting the interface");
        }
        self.clean_up();
    }

    /// Takes back what does not go with the interface.
    pub fn clean_up(&mut self) {
        if let Some(guardian) = &mut self.guardian {
            return complain(guardian.tell(Word::PostDown));
        }
        if !self.ledger.is_empty() {
            self.ledger.undo(&self.netlink);
        }
        if self.complete {
            let hooks = &self.conf.interface.hooks;
            complain(hooks::run("PostDown", &hooks.post_down, &self.name));
        }
    }

    /// Writes the state into the file.
    fn save(&mut self, node: &Node) -> anyhow::Result<()> {
        let state = node.state();
        match &mut self.guardian {
            Some(guardian) => guardian.save(&state),
            None => saved::write(&self.path, &self.conf.interface, &state).context("SaveConfig"),
        }
    }
}

/// What came of [`sweep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swept {
    /// There was nothing to do, or there is an interface of that name.
    Nothing,
    /// Another process brought it down meanwhile, and did all.
    ByAnother,
    /// What was left is taken back.
    TakenBack,
}

/// Takes back what a process left behind that was killed, when its guardian is done.
///
/// # Errors
/// It cannot be told.
pub fn sweep(name: &str) -> anyhow::Result<Swept> {
    if !Turn::is_known(name) && Ledger::open(name)?.is_empty() {
        return Ok(Swept::Nothing);
    }
    let Some(turn) = Turn::wait(name)? else { return Ok(Swept::Nothing) };
    let (mut ledger, netlink) = (Ledger::open(name)?, Netlink::open()?);
    if netlink.link_by_name(name)?.is_some() {
        return Ok(Swept::Nothing);
    }
    let swept = match (ledger.is_empty(), turn.was_waited_for()) {
        (false, _) => Swept::TakenBack,
        // The guardian has done all but remove the socket's file.
        (true, true) => Swept::ByAnother,
        (true, false) => return Ok(Swept::Nothing),
    };
    SocketFile::make_room(&socket_path(name)).with_context(|| name.to_owned())?;
    ledger.undo(&netlink);
    anyhow::ensure!(ledger.is_empty(), "{name}: not all could be taken back");
    Ok(swept)
}

/// Of a device whose IPv6 is switched off the kernel says only `EACCES` (net/ipv6/addrconf.c,
/// `ipv6_add_addr`).
fn why_refused(error: NetlinkError, device: &str, address: IpNet) -> anyhow::Error {
    let setting = format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6");
    let is_off = || fs::read_to_string(setting).is_ok_and(|value| value.trim() == "1");
    let is_v6 = address.addr().is_ipv6();
    let is_refused = error.errno() == Some(EACCES);
    let error = anyhow::Error::new(error);
    if is_v6 && is_refused && is_off() {
        return error.context(format!(
            "IPv6 is off on this host (net.ipv6.conf.{device}.disable_ipv6 is 1, as \
             net.ipv6.conf.default.disable_ipv6 is for new interfaces); without this address the \
             interface comes up"
        ));
    }
    error
}

fn complain(result: anyhow::Result<()>) {
    if let Err(error) = result {
        tracing::error!("{error:#}");
    }
}

/// The largest of the paths' MTUs, less our overhead, as wg-quick has it.
pub(crate) fn tunnel_mtu(
    netlink: &Netlink,
    endpoints: &[SocketAddr],
    fwmark: u32,
) -> anyhow::Result<u32> {
    let mut path = None;
    for endpoint in endpoints {
        path = path.max(netlink.mtu_to(endpoint.ip(), fwmark)?);
    }
    let path = match path {
        Some(mtu) => Some(mtu),
        None => netlink.default_route_mtu()?,
    };
    // Loopback's 65536 would make a tunnel that no IP packet fits.
    let path = path.unwrap_or(ETHERNET_MTU).min(u16::MAX.into());
    Ok(path.saturating_sub(OVERHEAD).max(1280))
}

/// Asks for a name's address; tries again while there is no answer.
///
/// # Errors
/// It has none, or nobody answers for long.
pub fn resolve(name: &EndpointName) -> anyhow::Result<SocketAddr> {
    let mut pause = RESOLVE_PAUSE;
    for last in (0..RESOLVE_TRIES).map(|attempt| attempt + 1 == RESOLVE_TRIES) {
        match (name.host.as_str(), name.port).to_socket_addrs() {
            Ok(mut addresses) => {
                return addresses.next().with_context(|| format!("Endpoint = {name}: no address"));
            }
            Err(error) if last => {
                return Err(error).with_context(|| format!("Endpoint = {name}"));
            }
            Err(_) => thread::sleep(pause),
        }
        pause *= 2;
    }
    unreachable!("the last try returns")
}
