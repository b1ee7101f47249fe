//! This machine's configuration: routes and resolvers by the steward, and the DNS server that
//! resolves the names of the network.

use std::{
    collections::HashSet,
    io,
    net::{IpAddr, TcpListener, UdpSocket},
    sync::Arc,
};

use ipc::{DesiredHost, ToSteward};
use ipnet::IpNet;
use mesh::magic_dns::{Config, Names};

use super::{
    control::dial::SocketHook,
    dns::{Served, Server, Sockets},
    problems::Problems,
    process_channel::LineSender,
};

/// The configuration of the host.
pub(super) struct Host {
    steward: Option<LineSender<ToSteward>>,
    /// Runs on each socket of the DNS server.
    hook: SocketHook,
    /// The resolvers that the host used before.
    resolvers: Vec<IpAddr>,
    /// The running DNS server and its address.
    server: Option<(IpAddr, Server)>,
}

impl Host {
    /// `steward` leads to the process that configures the host, if there is one.
    pub(super) fn new(steward: Option<LineSender<ToSteward>>, hook: Option<SocketHook>) -> Self {
        let hook = hook.unwrap_or_else(|| Arc::new(|_| Ok(())));
        Self { steward, hook, resolvers: Vec::new(), server: None }
    }

    /// The resolvers that the host used before.
    pub(super) fn resolvers(&self) -> &[IpAddr] {
        &self.resolvers
    }

    /// Sends the desired state to the steward.
    pub(super) fn configure(&self, desired: DesiredHost) {
        if let Some(steward) = &self.steward {
            steward.send(ToSteward::Host(desired));
        }
    }

    /// Handles the steward's report. Returns whether the settings must be applied again: for other
    /// resolvers, or because the address of the DNS server may be available only now.
    pub(super) fn handle_done(
        &mut self,
        failures: &[String],
        resolvers: Vec<IpAddr>,
        needs_server: bool,
        problems: &mut Problems,
    ) -> bool {
        failures.iter().for_each(|problem| tracing::error!("{problem}"));
        problems.update("host", (!failures.is_empty()).then(|| failures.join("; ")));
        let is_unbound = needs_server && self.server.is_none();
        let is_other = self.resolvers != resolvers;
        self.resolvers = resolvers;
        is_other || is_unbound
    }

    /// No new steward can be started, because its privileges ended with it. Everything that needs
    /// no privileges continues.
    pub(super) fn handle_steward_ended(&mut self, problems: &mut Problems) {
        const GONE: &str = "the process that configures routes and names was killed: they remain \
                            unchanged until this node is restarted";
        tracing::error!("{GONE}");
        self.steward = None;
        problems.set("host", GONE);
    }

    /// Answers DNS queries from these names, at the address of the desired state.
    pub(super) fn serve_names(
        &mut self,
        names: &Config,
        desired: &DesiredHost,
        problems: &mut Problems,
    ) {
        let own: HashSet<_> = desired.addresses.iter().map(IpNet::addr).collect();
        let (names, skipped) = Names::new(names);
        for one in skipped {
            tracing::debug!(?one, "a name was skipped");
        }
        let served = Served { names, own };
        let address = desired.names.as_ref().and_then(|names| names.servers.first()).copied();
        // A server that is not needed now continues, unless the address differs.
        self.server.take_if(|(at, _)| address.is_some_and(|address| address != *at));
        if let Some((_, server)) = &self.server {
            server.set(served);
            return;
        }
        let Some(address) = address else {
            problems.clear("names");
            return;
        };
        let hook = Arc::clone(&self.hook);
        let bound = bind(address).and_then(|sockets| Server::start(sockets, served, hook));
        match bound {
            Ok(server) => {
                self.server = Some((address, server));
                problems.clear("names");
            }
            Err(error) => {
                problems.set("names", format!("the DNS server cannot start at {address}: {error}"));
            }
        }
    }
}

/// Sockets for DNS queries.
fn bind(address: IpAddr) -> io::Result<Sockets> {
    let at = (address, 53);
    Ok(Sockets { udp: vec![UdpSocket::bind(at)?], tcp: vec![TcpListener::bind(at)?] })
}
