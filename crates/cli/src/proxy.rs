//! `linerate proxy`.

use clap::Args;
use config::conf::{SocketAddress, WithOrigin};
use process::proxy::{Options, StackChoice, run};

use crate::{ConfFile, Sandbox, log::Log, resource_args::ResourceArgs};

/// Arguments of `linerate proxy`.
#[derive(Args)]
pub(crate) struct Proxy {
    /// Also serve SOCKS5 here: ADDRESS:PORT or unix:/PATH.
    #[arg(long, value_name = "ADDRESS", value_parser = socket_address)]
    socks: Vec<SocketAddress>,
    /// Also serve an HTTP proxy here.
    #[arg(long, value_name = "ADDRESS", value_parser = socket_address)]
    http: Vec<SocketAddress>,
    /// Which TCP/IP stack to use: the kernel's, in a private network namespace, or the one inside
    /// the process. `auto` uses the kernel's if it is available.
    #[arg(long, value_name = "STACK", default_value = "auto", value_parser = stack)]
    stack: StackChoice,
    #[command(flatten)]
    sandbox: Sandbox,
    #[command(flatten)]
    resource_args: ResourceArgs,
    #[command(flatten)]
    log: Log,
    #[command(flatten)]
    conf: ConfFile,
}

impl Proxy {
    pub(crate) fn log(&self) -> Log {
        self.log
    }

    /// Runs until it is stopped.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let resources = self.resource_args.resources()?;
        let (name, _, mut conf) = self.conf.read_any()?;
        let proxy = &mut conf.interface.proxy;
        proxy.socks.extend(self.socks.into_iter().map(|value| with_origin("--socks", value)));
        proxy.http.extend(self.http.into_iter().map(|value| with_origin("--http", value)));
        self.log.start();
        if Some(name.as_str()) != self.conf.conf.file_stem().and_then(|stem| stem.to_str()) {
            eprintln!("linerate: the name of this proxy for show, down and reload is {name}");
        }
        let (stack, sandbox) = (self.stack, self.sandbox.is_on());
        let log_style = self.log.style(false);
        run(Options { name, conf, resources, stack, sandbox, member: None, log_style }, || {})
    }
}

pub(crate) fn with_origin(argument: &str, value: SocketAddress) -> WithOrigin<SocketAddress> {
    WithOrigin { origin: argument.to_owned(), value }
}

pub(crate) fn socket_address(text: &str) -> Result<SocketAddress, String> {
    SocketAddress::parse(text).map_err(|error| error.to_string())
}

fn stack(text: &str) -> Result<StackChoice, String> {
    match text {
        "auto" => Ok(StackChoice::Auto),
        "namespace" => Ok(StackChoice::Namespace),
        "in-process" => Ok(StackChoice::InProcess),
        _ => Err("must be auto, namespace or in-process".to_owned()),
    }
}
