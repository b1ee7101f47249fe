//! The tutorials of docs/tutorials: their blocks run on hosts of the rig, in the order of the page.
//!
//! ```text
//!   ```sh HOST             a script that must succeed
//!   ```toml HOST:FILE      a file
//!   ```                    the installation of packages, which is left out
//! ```
//!
//! Names and addresses of the page are replaced by those of the rig, and `KEY` by the last auth key that
//! a script printed. Hosts lack systemd: `systemctl` is a script that runs the command of a unit.

mod from_headscale;
mod from_tailscale;
mod from_wg_quick;

use std::time::Duration;

use netns::{Host, Implementation, Tailnet, eventually, logged, peer};

/// Time in which nodes reach an agreed state.
const PATIENCE: Duration = Duration::from_secs(60);

/// A `systemctl` for the units of the packages, and for other programs of which `NAME serve` is the
/// command.
const SYSTEMCTL: &str = r#"#!/bin/bash
set -e
verb=$1
shift
[ "$1" != --now ] || { now=1; shift; }
unit=$1 name=${1%@*} instance=${1#*@}
file=UNITS/${unit/@*/@}.service
case $verb:$now in
  enable:) [ -e "$file" ] ;;
  enable:1)
    mkdir -p /run/linerate-server /var/lib/linerate-server
    line="$unit serve"
    [ ! -e "$file" ] || line=$(sed -n 's,^ExecStart=/usr/bin/,,p' "$file")
    eval "setsid ${line//%i/$instance}" </dev/null >"/run/rig/$unit.log" 2>&1 &
    case $name in
      linerate) until linerate show "$instance" >/dev/null 2>&1; do sleep 0.1; done ;;
      *) until ss -Htln 'sport = :443' | grep -q .; do sleep 0.1; done ;;
    esac ;;
  disable:1)
    case $name in
      linerate | wg-quick) "$name" down "$instance" ;;
      *)
        pkill -x "$name"
        while pgrep -x "$name" >/dev/null; do sleep 0.1; done ;;
    esac ;;
  *) echo "systemctl $verb is not of the rig" >&2; exit 1 ;;
esac
"#;

/// The environment of a tutorial's commands.
const ENVIRONMENT: &str = "PATH=/run/rig/bin:$PATH SSL_CERT_FILE=/run/rig/ca.pem";

/// A part of a page.
#[derive(Debug, PartialEq)]
enum Block<'a> {
    Script { host: &'a str, text: &'a str },
    File { host: &'a str, path: &'a str, text: &'a str },
}

/// The blocks of a page that name a host.
fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    for fenced in page.split("\n```").skip(1).step_by(2) {
        let (info, text) = fenced.split_once('\n').expect("a block has lines");
        match info.split_once(' ') {
            Some(("sh", host)) => blocks.push(Block::Script { host, text }),
            Some((_, target)) => {
                let (host, path) = target.split_once(':').expect("HOST:FILE");
                blocks.push(Block::File { host, path, text });
            }
            None => assert!(text.lines().all(|line| line.starts_with("apt install ")), "{text}"),
        }
    }
    blocks
}

/// The machines of a tutorial, and the words of its page that are replaced.
struct Machines<'a> {
    hosts: Vec<(&'a str, Host)>,
    replaced: Vec<(&'a str, String)>,
    key: String,
}

impl<'a> Machines<'a> {
    /// Installs linerate on hosts, which have these names on the page.
    fn new(hosts: &[(&'a str, &Host)], replaced: Vec<(&'a str, String)>) -> Self {
        let hosts: Vec<_> = hosts.iter().map(|(name, host)| (*name, Host::clone(host))).collect();
        hosts.iter().for_each(|(_, host)| install(host));
        Machines { hosts, replaced, key: String::new() }
    }

    /// Runs all blocks of a page.
    fn run(&mut self, page: &str) {
        for block in blocks(page) {
            match block {
                Block::File { host, path, text } => {
                    let file = self.host(host).write("file", &self.text(text));
                    self.host(host).run(format!("mkdir -p $(dirname {path}) && cp {file} {path}"));
                }
                Block::Script { host, text } => {
                    wait_for_pinged_nodes(self.host(host), text);
                    let script = self.host(host).write("script", &self.text(text));
                    let ended = logged(self.host(host), &format!("{ENVIRONMENT} bash -e {script}"));
                    assert!(ended.ok, "on {host}:\n{text}\nprinted:\n{}", ended.stderr);
                    if text.contains("preauthkeys create") {
                        let key = ended.stderr.lines().last().expect("a key is printed");
                        self.key = key.trim().to_owned();
                    }
                }
            }
        }
    }

    fn host(&self, name: &str) -> &Host {
        let host = self.hosts.iter().find(|(on_page, _)| *on_page == name);
        host.map_or_else(|| panic!("no host is called {name}"), |(_, host)| host)
    }

    fn text(&self, text: &str) -> String {
        let replace = |text: String, (word, by): &(&str, String)| text.replace(word, by);
        let text = self.replaced.iter().fold(text.to_owned(), replace);
        assert!(!text.contains("KEY") || !self.key.is_empty(), "no key was printed before: {text}");
        text.replace("KEY", &self.key)
    }
}

/// Waits until the node on a host has the nodes that a script pings before it joins. A reader of the
/// page is slower than a new map.
fn wait_for_pinged_nodes(host: &Host, script: &str) {
    for line in script.lines().take_while(|line| !line.contains(" join ")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [program @ ("tailscale" | "linerate"), "ping", name] = words[..] else { continue };
        eventually(&format!("{program} has {name}"), PATIENCE, || {
            let status = host.run(format!("{ENVIRONMENT} {program} status"));
            status.split_whitespace().any(|word| word == name)
        });
    }
}

/// Installs the programs on a host. Its /var/lib becomes private.
fn install(host: &Host) {
    host.run("mount -t tmpfs tmpfs /var/lib");
    let units = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/systemd");
    host.write_program("systemctl", &SYSTEMCTL.replace("UNITS", units));
    let program = Implementation::Linerate.path();
    host.run(format!("ln -s {} /run/rig/bin/linerate", program.display()));
    if let Some(client) = peer("tailscale") {
        let line = format!("exec {} --socket=/run/rig/tailscaled.sock \"$@\"", client.display());
        host.write_program("tailscale", &format!("#!/bin/sh\n{line}\n"));
    }
}

/// The replaced words of a page about a server with this address.
fn of_server(address: &str) -> Vec<(&'static str, String)> {
    vec![
        ("/etc/ssl/private/net.example.com.key", "/run/rig/tls.key".to_owned()),
        ("/etc/ssl/net.example.com.pem", "/run/rig/tls.pem".to_owned()),
        ("net.example.com", address.to_owned()),
    ]
}

/// Installs the coordinator.
fn install_server(host: &Host) {
    let program = netns::CoordinatorKind::Linerate.program().expect("the server is built");
    host.run(format!("ln -s {} /run/rig/bin/linerate-server", program.display()));
}

/// Runs a command of the coordinator that a tutorial started.
fn server_command(host: &Host, arguments: &str) -> String {
    host.run(format!("/run/rig/bin/linerate-server {arguments}"))
}

/// A tailnet of headscale for the start of a tutorial, if `linerate-server` is built, too.
fn old_network() -> Option<Tailnet> {
    if netns::CoordinatorKind::Linerate.program().is_none() {
        netns::skip("linerate-server");
        return None;
    }
    Tailnet::start_with(netns::CoordinatorKind::Headscale)
}

#[test]
fn blocks_have_the_host_of_their_first_line() {
    let page = "\n```\napt install ./a.deb\n```\ntext\n```sh desk\nls\n```\n\n```toml server:/etc/a\nb = 1\n```\n";
    let expected = [
        Block::Script { host: "desk", text: "ls" },
        Block::File { host: "server", path: "/etc/a", text: "b = 1" },
    ];
    assert_eq!(blocks(page), expected);
}
