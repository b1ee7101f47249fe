//! The packet filter of a full tunnel, as wg-quick(8) sets it, in a table of our
//! own: what answers our marked datagrams is marked again on arrival, so that a
//! strict reverse path filter finds its way back; and nobody on the outer networks
//! can send to the tunnel's addresses (CVE-2019-14899).

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    process::{Command, Stdio},
};

use anyhow::{Context, bail};
use ipnet::IpNet;
use sys::process::unmask;

/// A table of rules, by its name.
#[derive(Debug)]
pub(super) struct Firewall(String);

impl Firewall {
    /// Sets the rules. Without nft(8) there are none, which is said.
    pub fn set(interface: &str, addresses: &[IpNet], mark: u32) -> Option<Self> {
        let table = Self(format!("linerate-{interface}"));
        match nft(&rules(&table.0, interface, addresses, mark)) {
            Ok(()) => Some(table),
            Err(error) => {
                tracing::warn!("no packet filter for the full tunnel: {error:#}");
                None
            }
        }
    }

    /// Takes the rules away.
    pub fn remove(self) -> anyhow::Result<()> {
        nft(&format!("delete table inet {}\n", self.0))
    }
}

fn rules(table: &str, interface: &str, addresses: &[IpNet], mark: u32) -> String {
    let mut rules = format!(
        "add table inet {table}\n\
         add chain inet {table} preraw {{ type filter hook prerouting priority -300; }}\n\
         add chain inet {table} premangle {{ type filter hook prerouting priority -150; }}\n\
         add chain inet {table} postmangle {{ type filter hook postrouting priority -150; }}\n"
    );
    for address in addresses {
        let family = if address.addr().is_ipv4() { "ip" } else { "ip6" };
        // Writing to a string does not fail.
        let _ = writeln!(
            rules,
            "add rule inet {table} preraw iifname != \"{interface}\" {family} daddr {} \
             fib saddr type != local drop",
            address.addr()
        );
    }
    let udp = "meta l4proto udp";
    let _ = writeln!(rules, "add rule inet {table} postmangle {udp} mark {mark} ct mark set mark");
    let _ = writeln!(rules, "add rule inet {table} premangle {udp} meta mark set ct mark");
    rules
}

fn nft(script: &str) -> anyhow::Result<()> {
    let mut command = Command::new("nft");
    command.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut process = match unmask(&mut command).spawn() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => bail!("nft is not installed"),
        process => process.context("nft")?,
    };
    if let Some(mut stdin) = process.stdin.take() {
        stdin.write_all(script.as_bytes()).context("nft")?;
    }
    let status = process.wait().context("nft")?;
    if !status.success() {
        bail!("nft: {status}");
    }
    Ok(())
}
