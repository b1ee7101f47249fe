//! `linerate proxy`.

use std::path::PathBuf;

use clap::Args;
use node::{
    conf::{Place, Placed},
    proxy::{Options, run},
};

use crate::{log, machine::Machine, read_conf};

/// Arguments of `linerate proxy`.
#[derive(Args)]
pub(crate) struct Proxy {
    /// Serve SOCKS5 here too: ADDRESS:PORT, or unix:/PATH.
    #[arg(long, value_name = "PLACE", value_parser = place)]
    socks: Vec<Place>,
    /// Serve an HTTP proxy here too.
    #[arg(long, value_name = "PLACE", value_parser = place)]
    http: Vec<Place>,
    #[command(flatten)]
    machine: Machine,
    /// A file NAME.conf, or NAME for /etc/wireguard/NAME.conf. Beside the keys of
    /// wg-quick, [Interface] may have Socks5, HttpProxy, Forward, Expose and ProxyUser.
    conf: PathBuf,
}

impl Proxy {
    /// Runs until it is told to end.
    pub fn run(self) -> anyhow::Result<()> {
        let means = self.machine.means()?;
        let (name, _, mut conf) = read_conf(&self.conf)?;
        let proxy = &mut conf.interface.proxy;
        proxy.socks.extend(self.socks.into_iter().map(|value| placed("--socks", value)));
        proxy.http.extend(self.http.into_iter().map(|value| placed("--http", value)));
        log::start();
        run(Options { name, conf, means }, || {})
    }
}

fn placed(argument: &str, value: Place) -> Placed<Place> {
    Placed { origin: argument.to_owned(), value }
}

fn place(text: &str) -> Result<Place, String> {
    Place::parse(text).map_err(|error| error.to_string())
}
