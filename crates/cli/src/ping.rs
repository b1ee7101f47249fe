//! `linerate ping`: pings a node of a tailnet, or through the tunnel of a running proxy.

use std::{thread, time::Duration};

use anyhow::{Context, bail};
use clap::Args;

use crate::{client::Client, tailnet};

/// The time between requests, as in ping(8).
const INTERVAL: Duration = Duration::from_secs(1);

/// Arguments of `linerate ping`.
#[derive(Args)]
pub(crate) struct Ping {
    /// How many requests to send.
    #[arg(short, long, default_value_t = 4, value_name = "N")]
    count: u32,
    /// Ping a node through the tunnel. Its data plane answers, not its host.
    #[arg(long)]
    tsmp: bool,
    /// The interface of the tailnet node, if this machine has several, or the name of the proxy, from its
    /// file NAME.conf.
    #[arg(short, long, value_name = "IFACE|PROXY")]
    interface: Option<String>,
    /// A node; or an address, or a name that the DNS servers in the tunnel can resolve. As in earlier
    /// versions, the interface may precede it.
    #[arg(value_name = "NODE|HOST", num_args = 1..=2, required = true)]
    target: Vec<String>,
}

impl Ping {
    /// Sends the requests.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let (interface, host) = match (&self.interface, &self.target[..]) {
            (interface, [host]) => (interface.as_deref(), host),
            (None, [interface, host]) => (Some(interface.as_str()), host),
            _ => bail!("one NODE or HOST is required with --interface"),
        };
        match interface {
            Some(proxy) if !tailnet::is_running_node(proxy) => match self.tsmp {
                true => bail!("--tsmp is for nodes of a tailnet"),
                false => self.ping_from_proxy(proxy, host),
            },
            node => tailnet::ping(node.map(str::to_owned), host, self.count, self.tsmp),
        }
    }

    fn ping_from_proxy(&self, proxy: &str, host: &str) -> anyhow::Result<()> {
        let mut client = Client::connect(proxy)?;
        let mut received = 0;
        for number in 1..=self.count {
            let what = "it may not be a `linerate proxy`";
            let answer = client.send("linerate-ping", &format!("host={host}\n"));
            let answer = answer.context(what)?;
            let value = |key: &str| {
                let mut pairs = answer.lines().filter_map(|line| line.split_once('='));
                pairs.find(|(name, _)| *name == key).map(|(_, value)| value)
            };
            if let Some(error) = value("error") {
                bail!("{host}: {error}");
            }
            match (value("address"), value("nanoseconds").and_then(|text| text.parse().ok())) {
                (Some(address), Some(nanoseconds)) => {
                    received += 1;
                    let time = Duration::from_nanos(nanoseconds).as_secs_f64() * 1000.0;
                    println!("answer from {address}: number={number} time={time:.3} ms");
                }
                _ => println!("no answer: number={number}"),
            }
            if number < self.count {
                thread::sleep(INTERVAL);
            }
        }
        println!("{} sent, {received} received", self.count);
        if received == 0 {
            bail!("{host}: no answer")
        }
        Ok(())
    }
}
