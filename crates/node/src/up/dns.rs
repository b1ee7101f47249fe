//! Name resolution through the tunnel: by resolvconf(8) where it is installed,
//! else in `/etc/resolv.conf` itself.

use std::{
    fs, io,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use sys::process::unmask;

use crate::conf::Dns;

const RESOLV_CONF: &str = "/etc/resolv.conf";

/// What was changed, and how to change it back.
#[derive(Debug)]
pub(super) enum Resolver {
    /// By resolvconf, under this name.
    Resolvconf(String),
    /// In the file, whose former text is kept in this file, for a restart after a
    /// crash too.
    File { backup: PathBuf },
}

impl Resolver {
    /// Directs name resolution to `dns`.
    pub fn set(interface: &str, dns: &Dns) -> io::Result<Self> {
        let text = text(dns);
        let name = format!("{}{interface}", interface_prefix());
        match resolvconf(&["-a", &name, "-m", "0", "-x"], &text) {
            Ok(()) => return Ok(Self::Resolvconf(name)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let backup = crate::server::socket_path(interface).with_extension("resolv.conf");
        if !backup.exists() {
            let former = match fs::read(RESOLV_CONF) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
                former => former?,
            };
            write(&backup, &former)?;
        }
        // In place: the file may be a bind mount.
        fs::write(RESOLV_CONF, text)?;
        Ok(Self::File { backup })
    }

    /// Puts back what was there.
    pub fn restore(self) -> io::Result<()> {
        match self {
            Self::Resolvconf(name) => resolvconf(&["-d", &name, "-f"], ""),
            Self::File { backup } => {
                fs::write(RESOLV_CONF, fs::read(&backup)?)?;
                fs::remove_file(backup)
            }
        }
    }
}

/// Debian's resolvconf(8) orders interfaces by the first pattern that fits; systemd's
/// takes the bare name only. The rule is wg-quick's.
fn interface_prefix() -> String {
    let order = fs::read_to_string("/etc/resolvconf/interface-order").unwrap_or_default();
    let prefix = order.lines().filter_map(|line| line.trim().strip_suffix('*')).find(|prefix| {
        !prefix.is_empty() && prefix.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    });
    prefix.map(|prefix| format!("{prefix}.")).unwrap_or_default()
}

fn text(dns: &Dns) -> String {
    let mut text = String::new();
    for server in &dns.servers {
        text += &format!("nameserver {server}\n");
    }
    if !dns.search_domains.is_empty() {
        text += &format!("search {}\n", dns.search_domains.join(" "));
    }
    text
}

fn resolvconf(arguments: &[&str], input: &str) -> io::Result<()> {
    let mut command = Command::new("resolvconf");
    let mut process = unmask(command.args(arguments).stdin(Stdio::piped())).spawn()?;
    if let Some(mut stdin) = process.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    let status = process.wait()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("resolvconf: {status}"))) }
}

fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text)?;
    file.sync_all()
}
