//! `linerate doctor`: finds and fixes settings of this host that break a tunnel or make it slow.

mod json;
mod text;

use std::{fs, io, process::ExitCode};

use anyhow::Context;
use clap::Args;
use doctor::{
    Applied, Host, Remedy, Report, Setting, Tunnel, TunnelPeer, UndoOutcome, Verdict, examine,
    gather,
};
use host::sockets::folders;
use wg::DropReason;

use crate::{
    interface::{self, Interface},
    tailnet,
};

/// The exit status if there is a problem.
const FOUND: u8 = 1;
/// The exit status if the checks failed.
const NOT_CHECKED: u8 = 2;

/// Arguments of `linerate doctor`.
#[derive(Args)]
pub(crate) struct Doctor {
    /// Only this interface and the host; all running interfaces by default.
    interface: Option<String>,
    /// Print JSON for programs; docs/json.md is the schema.
    #[arg(long)]
    json: bool,
    /// Fix the settings that were found. Their previous values are stored until the system is shut
    /// down.
    #[arg(long)]
    apply: bool,
    /// Revert what --apply changed.
    #[arg(long, conflicts_with_all = ["apply", "interface"])]
    undo: bool,
}

impl Doctor {
    /// Returns the exit status: 0 without problems, 1 with problems, 2 if the checks failed.
    pub(crate) fn run(&self) -> ExitCode {
        let done = if self.undo { self.undo() } else { self.check() };
        done.unwrap_or_else(|error| {
            eprintln!("linerate: {error:#}");
            NOT_CHECKED.into()
        })
    }

    fn check(&self) -> anyhow::Result<ExitCode> {
        let mut report = self.report()?;
        let mut applied = Vec::new();
        let settings: Vec<Setting> = report.settings().cloned().collect();
        if self.apply && !settings.is_empty() {
            applied = remedy()?
                .apply(settings.iter())
                .context("the remaining settings were not applied")?;
            report = self.report()?;
        }
        match self.json {
            true => println!("{:#}", json::describe(&report, &applied)),
            false => print!("{}", text::describe(&report, &applied)),
        }
        Ok(match report.verdict() {
            Verdict::Fine => ExitCode::SUCCESS,
            Verdict::Found => FOUND.into(),
            Verdict::Incomplete => NOT_CHECKED.into(),
        })
    }

    fn report(&self) -> anyhow::Result<Report> {
        let interfaces = interface::query(self.interface.as_deref())?;
        let tunnels = interfaces.iter().map(|interface| {
            let mut tunnel = tunnel(interface);
            tailnet::add_node_health(&mut tunnel);
            tunnel
        });
        let mut facts = gather(tunnels.collect())?;
        if self.interface.is_none() {
            facts.unknown.extend(unreadable_folders());
        }
        Ok(examine(&facts))
    }

    fn undo(&self) -> anyhow::Result<ExitCode> {
        let undone = remedy()?.undo()?;
        match self.json {
            true => println!("{:#}", json::describe_undone(&undone)),
            false => print!("{}", text::describe_undone(&undone)),
        }
        let failed = undone.iter().any(|(_, undone)| matches!(undone, UndoOutcome::Failed(_)));
        Ok(if failed { FOUND.into() } else { ExitCode::SUCCESS })
    }
}

/// Folders of control sockets that this user may not read. They may contain sockets.
fn unreadable_folders() -> impl Iterator<Item = String> {
    folders().filter_map(|folder| match fs::read_dir(&folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Some(format!("the interfaces in {}: {error}", folder.display()))
        }
        _ => None,
    })
}

fn remedy() -> anyhow::Result<Remedy<Host>> {
    Remedy::open(Host).context("/run/linerate, which stores the previous values")
}

/// The facts about an interface that the checks need.
fn tunnel(interface: &Interface) -> Tunnel {
    let own = interface.own.as_ref();
    let demotions = own.into_iter().flat_map(|own| &own.offloads);
    let peers = interface.peers.iter().map(|peer| TunnelPeer {
        key: peer.public_key.to_base64(),
        endpoint: peer.endpoint,
        allowed_ips: peer.allowed_ips.clone(),
        is_looped: false,
        path_mtu: None,
        found_mtu: peer.path_mtu.map(u32::from),
        last_handshake: peer.last_handshake,
        tx_bytes: peer.tx_bytes,
    });
    Tunnel {
        name: interface.name.clone(),
        mtu: None,
        listen_port: interface.listen_port,
        fwmark: interface.fwmark.unwrap_or(0),
        offers: own.map(|own| own.offers.clone()).unwrap_or_default(),
        lost: Vec::new(),
        receive_buffer: own.map(|own| own.socket.receive_buffer).filter(|granted| *granted != 0),
        send_buffer: own.map(|own| own.socket.send_buffer).filter(|granted| *granted != 0),
        overflow: own.map_or(0, |own| own.socket.overflow),
        looped: own.map_or(0, |own| own.dropped(DropReason::OutLoop)),
        demotions: demotions
            .filter(|offload| offload.demotions != 0)
            .map(|offload| (offload.name.clone(), offload.demotions))
            .collect(),
        peers: peers.collect(),
        member: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_state_and_statistics_reach_the_checks() {
        let state = format!(
            "listen_port=7\nfwmark=9\npublic_key={}\nendpoint=[fe80::1%2]:1\n\
             last_handshake_time_sec=5\nlast_handshake_time_nsec=0\ntx_bytes=6\nerrno=0\n",
            "a8".repeat(32)
        );
        let mut interface = Interface::parse("wg0".into(), &state);
        let bare = tunnel(&interface);
        assert_eq!((bare.receive_buffer, bare.overflow), (None, 0));
        let key = interface.peers[0].public_key.to_base64();
        interface.read_stats(&format!(
            "in_forged=9\nout_loop=4\nudp_overflow=3\nudp_receive_buffer=8\nudp_send_buffer=6\noffload_udp-gso=on\n\
             demotions_udp-gso=2\noffload_udp-gro=on\ndemotions_udp-gro=0\noffers=10.0.0.0/8\npath_mtu={key} 1230\n"
        ));
        let tunnel = tunnel(&interface);
        assert_eq!((tunnel.listen_port, tunnel.fwmark), (Some(7), 9));
        assert_eq!((tunnel.receive_buffer, tunnel.send_buffer), (Some(8), Some(6)));
        assert_eq!(tunnel.overflow, 3);
        assert_eq!((tunnel.looped, tunnel.offers.len()), (4, 1));
        assert_eq!(tunnel.demotions, [("udp-gso".to_owned(), 2)]);
        let peer = &tunnel.peers[0];
        assert_eq!(peer.endpoint, Some("[fe80::1%2]:1".parse().unwrap()));
        assert_eq!(peer.found_mtu, Some(1230));
        let times = (peer.last_handshake.map(|time| time.as_secs()), peer.tx_bytes);
        assert_eq!(times, (Some(5), 6));
    }
}
