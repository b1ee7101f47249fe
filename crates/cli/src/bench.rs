//! `linerate bench`: measures a tunnel on this machine. It needs only the binary. The crate `bench`
//! compares with other implementations; it needs the sources and the test harness.
//!
//! ```text
//!   left                                               right
//!   wg0  10.9.0.1   . . . . . . tunnel . . . . . . .   wg0  10.9.0.2
//!   eth0 10.1.0.1  ------------ cable --------------   eth0 10.1.0.2
//! ```
//!
//! Both hosts are namespaces. They end with this process, however it ends, with all processes in them.
//! The traffic uses sockets of this process in these namespaces.

mod host;
mod traffic;

use std::{num::NonZero, os::unix::process::CommandExt, process, thread, time::Duration};

use anyhow::Context;
use clap::Args;
use getrandom::{SysRng, rand_core::UnwrapErr};
use nix::unistd::geteuid;
use wg::PrivateKey;

use host::{Daemon, Host, cable};
use traffic::{Flood, Load, echoes, percentile};

/// The daemons' UDP port.
const PORT: u16 = 51820;

/// Payload bytes of a datagram of the flood. With headers it fits the tunnel's MTU.
const PAYLOAD: usize = 1380;

/// Arguments of `linerate bench`.
#[derive(Args)]
pub(crate) struct Bench {
    /// The length of each measurement.
    #[arg(long, value_name = "N", default_value = "3")]
    seconds: NonZero<u8>,
}

/// Both ends of the tunnel.
struct Tunnel {
    left: Host,
    right: Host,
    daemons: [Daemon; 2],
}

impl Bench {
    /// # Errors
    /// The system does not allow namespaces, or a program is missing.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        if !geteuid().is_root() {
            return reexec_as_root();
        }
        let time = Duration::from_secs(self.seconds.get().into());
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        println!("linerate {}: two hosts in network namespaces", env!("CARGO_PKG_VERSION"));
        println!("Both ends and the traffic generator share {cores} cores.\n");

        let tunnel = Tunnel::start()?;
        let (left, right) = (&tunnel.left, &tunnel.right);
        let bare = Load::start(left, right, "10.1.0.2")?.run(time)?;
        print("TCP over the bare cable", bare, "Gbit/s", 2);
        let before = tunnel.cpu();
        let forward = Load::start(left, right, "10.9.0.2")?.run(time)?;
        let cpu = (tunnel.cpu() - before) / (forward * time.as_secs_f64() / 8.0);
        print("TCP through the tunnel, forward", forward, "Gbit/s", 2);
        print("  processor time of both daemons", cpu, "s/GB", 2);
        let reverse = Load::start(right, left, "10.9.0.1")?.run(time)?;
        print("TCP through the tunnel, reverse", reverse, "Gbit/s", 2);

        let idle = echoes(left, right, "10.9.0.2", time)?;
        let (under_load, times) = thread::scope(|scope| -> anyhow::Result<_> {
            let load = Load::start(left, right, "10.9.0.2")?;
            let load = thread::Builder::new().spawn_scoped(scope, move || load.run(time))?;
            let times = echoes(left, right, "10.9.0.2", time)?;
            Ok((load.join().expect("the stream ends")?, times))
        })?;
        for (what, times) in [("idle", idle), ("during a bulk stream", times)] {
            let milliseconds = |part| percentile(&times, part).as_secs_f64() * 1e3;
            print(&format!("round trip of a datagram, {what}, p50"), milliseconds(0.5), "ms", 3);
            print(&format!("round trip of a datagram, {what}, p99"), milliseconds(0.99), "ms", 3);
        }
        print("  TCP at the same time", under_load, "Gbit/s", 2);

        let flood = Flood::start(left, right, "10.9.0.2", PAYLOAD)?.run(time)?;
        print("UDP of 1380 B, sent", flood.sent, "k/s", 0);
        print("UDP of 1380 B, received", flood.received, "k/s", 0);
        print("peak memory of both daemons", tunnel.memory(), "MB", 1);
        println!("\nMachines are noisy: compare figures of one run only.");
        Ok(())
    }
}

fn print(what: &str, figure: f64, unit: &str, digits: usize) {
    println!("  {what:<52} {figure:9.digits$} {unit}");
}

/// Executes this program again as root in a user namespace.
fn reexec_as_root() -> anyhow::Result<()> {
    let mut command = process::Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "--mount", "--"]);
    command.arg(host::own_binary()).args(std::env::args_os().skip(1));
    Err(command.exec()).context("cannot run unshare (util-linux)")
}

impl Tunnel {
    fn start() -> anyhow::Result<Self> {
        let (left, right) = (Host::start("left")?, Host::start("right")?);
        cable(&left, &right)?;
        let keys = [(); 2].map(|()| PrivateKey::generate(&mut UnwrapErr(SysRng)));
        let daemon = |host: &Host, number: usize| {
            let (own, other) = (&keys[number - 1], &keys[2 - number]);
            let far = 3 - number;
            let text = format!(
                "[Interface]\nPrivateKey = {}\nAddress = 10.9.0.{number}/24\nListenPort = {PORT}\n\
                 MTU = 1420\n\n[Peer]\nPublicKey = {}\nAllowedIPs = 10.9.0.{far}/32\n\
                 Endpoint = 10.1.0.{far}:{PORT}\n",
                own.to_base64().as_str(),
                other.public_key().to_base64(),
            );
            host.up(&text)
        };
        let daemons = [daemon(&left, 1)?, daemon(&right, 2)?];
        Ok(Self { left, right, daemons })
    }

    /// The processor time of both daemons since their start, in seconds.
    fn cpu(&self) -> f64 {
        self.daemons.iter().map(Daemon::cpu).sum()
    }

    /// The peak resident memory of both daemons, in megabytes.
    fn memory(&self) -> f64 {
        self.daemons.iter().map(Daemon::peak_memory).sum()
    }
}
