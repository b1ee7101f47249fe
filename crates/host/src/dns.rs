//! Name resolution through the tunnel: by systemd-resolved if this host uses it, else by
//! resolvconf(8) if it is installed, else in `/etc/resolv.conf` itself, which then holds its previous
//! text:
//!
//! ```text
//!   # linerate wg0: what follows #wg0| was here, and comes back when wg0 goes down.
//!   nameserver 10.9.0.2
//!   #wg0| nameserver 192.0.2.53
//! ```

use std::{
    fs, io,
    io::Write,
    net::IpAddr,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::Context;
use sys::{FileChanges, process::unmask};

use crate::undo_log::{Undo, UndoLog};
use config::conf::{Dns, NameServer};

const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Where systemd-resolved keeps the files that `/etc/resolv.conf` may be a link to.
const RESOLVED_FOLDER: &str = "/run/systemd/resolve";
/// Where it says whom it asks.
const RESOLVED_SERVERS: &str = "/run/systemd/resolve/resolv.conf";
/// Where it listens.
const RESOLVED_STUBS: [&str; 2] = ["nameserver 127.0.0.53", "nameserver 127.0.0.54"];

/// Directs name resolution to `dns`: of all names, or, where systemd-resolved can tell them apart
/// and there are any, of those in `domains` alone.
pub fn set(
    interface: &str,
    dns: &Dns,
    domains: &[String],
    log: &mut UndoLog,
) -> anyhow::Result<()> {
    if resolved_answers() {
        match configure_resolved(interface, dns, domains) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // Its settings go with the interface.
            set => return set.context("resolvectl"),
        }
    }
    let text = text(dns);
    let name = format!("{}{interface}", interface_prefix());
    log.record(Undo::Resolvconf(name.clone()))?;
    match run("resolvconf", &["-a", &name, "-m", "0", "-x"], &text) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => log.remove_last()?,
        set => return set.context("resolvconf"),
    }
    log.record(Undo::ResolvConf)?;
    let previous = read_file()?;
    // In place: the file may be a bind mount.
    Ok(fs::write(RESOLV_CONF, wrap(interface, &text, &previous))?)
}

/// Whether this host's questions go to systemd-resolved.
fn resolved_answers() -> bool {
    fs::canonicalize(RESOLV_CONF).is_ok_and(|path| path.starts_with(RESOLVED_FOLDER))
        || read_file()
            .is_ok_and(|text| text.lines().any(|line| RESOLVED_STUBS.contains(&line.trim())))
}

/// `~.` directs all names there, as wg-quick's `resolvconf -x` does.
fn configure_resolved(interface: &str, dns: &Dns, only: &[String]) -> io::Result<()> {
    let mut domains = dns.search_domains.clone();
    if !dns.servers.is_empty() {
        let servers: Vec<_> = dns.servers.iter().map(ToString::to_string).collect();
        run("resolvectl", &words(&["dns", interface], &servers), "")?;
        match only {
            [] => domains.insert(0, "~.".to_owned()),
            only => domains.extend(only.iter().map(|domain| format!("~{domain}"))),
        }
    }
    run("resolvectl", &words(&["domain", interface], &domains), "")
}

/// Takes back what systemd-resolved was told about an interface.
///
/// # Errors
/// It refuses.
pub fn revert_resolved(interface: &str) -> anyhow::Result<()> {
    if resolved_answers() {
        run("resolvectl", &["revert", interface], "").context("resolvectl")?;
    }
    Ok(())
}

/// Who answers questions about names on this host, or would but for `interface`, whose own servers
/// are `own`. Not systemd-resolved's own address, and no link-local ones, which need a scope.
pub fn other_servers(interface: &str, own: &[IpAddr]) -> Vec<IpAddr> {
    let text = if resolved_answers() {
        fs::read_to_string(RESOLVED_SERVERS).unwrap_or_default()
    } else {
        let text = read_file().unwrap_or_default();
        unwrap(interface, &text).unwrap_or(text)
    };
    listed(&text).filter(|server| !own.contains(server)).collect()
}

/// The addresses of name servers that can be used without a scope.
fn listed(text: &str) -> impl Iterator<Item = IpAddr> {
    let addresses = parse(text).servers.into_iter().map(|server| server.address);
    addresses.filter(|ip| !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local()))
}

/// The name servers and search domains that this host has for `interface` now. Returns `in_file`,
/// those of the start, if this host does not show the present ones.
pub fn current(interface: &str, in_file: &Dns) -> Dns {
    if resolved_answers() {
        return current_resolved(interface).unwrap_or_else(|| in_file.clone());
    }
    let name = format!("{}{interface}", interface_prefix());
    match output("resolvconf", &["-l", &name]) {
        Ok(text) => return parse(&text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        // Debian's resolvconf(8) prints none. The rule is wg-quick's.
        Err(_) => {
            let kept = Path::new("/etc/resolvconf/run/interface").join(&name);
            return parse(&fs::read_to_string(kept).unwrap_or_default());
        }
    }
    let own = read_file().ok().and_then(|text| own_lines(interface, &text));
    own.map_or_else(|| in_file.clone(), |text| parse(&text))
}

/// What systemd-resolved has; `None` if it does not answer.
fn current_resolved(interface: &str) -> Option<Dns> {
    let words = |what: &str| {
        let text = output("resolvectl", &[what, interface]).ok()?;
        // Link 5 (wg0): 10.9.0.2 fd09::2
        let (_, words) = text.split_once("):")?;
        Some(words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    };
    let servers = words("dns")?.iter().filter_map(|server| NameServer::parse(server)).collect();
    // That all names are resolved here follows from the servers.
    let search_domains = words("domain")?.into_iter().filter(|domain| domain != "~.").collect();
    Some(Dns { servers, search_domains })
}

/// Reads lines of resolv.conf(5).
fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => dns.servers.extend(words.filter_map(NameServer::parse)),
            Some("search" | "domain") => dns.search_domains.extend(words.map(str::to_owned)),
            _ => {}
        }
    }
    dns
}

/// Tells when the answer of [`other_servers`] may be another.
///
/// # Errors
/// No watch is left.
pub fn watch_changes() -> io::Result<FileChanges> {
    FileChanges::new(&[Path::new(RESOLV_CONF), Path::new(RESOLVED_SERVERS)])
}

fn words<'a>(first: &[&'a str], others: &'a [String]) -> Vec<&'a str> {
    first.iter().copied().chain(others.iter().map(String::as_str)).collect()
}

/// Removes servers from resolvconf(8).
pub fn remove_from_resolvconf(name: &str) -> io::Result<()> {
    run("resolvconf", &["-d", name, "-f"], "")
}

/// Whether the file holds what was in it before `interface` came up.
pub fn file_is_ours(interface: &str) -> bool {
    read_file().is_ok_and(|text| unwrap(interface, &text).is_some())
}

/// Restores the previous text of the file, if nobody has written another one since.
pub fn restore_file(interface: &str) -> io::Result<()> {
    match unwrap(interface, &read_file()?) {
        Some(previous) => fs::write(RESOLV_CONF, previous),
        None => Ok(()),
    }
}

fn read_file() -> io::Result<String> {
    match fs::read(RESOLV_CONF) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

fn heading(interface: &str) -> String {
    let mark = mark(interface);
    format!(
        "# linerate {interface}: what follows {} was here, and comes back when {interface} goes \
         down.\n",
        mark.trim_end()
    )
}

fn mark(interface: &str) -> String {
    format!("#{interface}| ")
}

/// `text`, and what was there before it in comments.
fn wrap(interface: &str, text: &str, previous: &str) -> String {
    let mark = mark(interface);
    let kept = previous.split_inclusive('\n').map(|line| format!("{mark}{line}"));
    heading(interface) + text + &kept.collect::<String>()
}

/// The lines of `interface` itself; `None` if the file does not hold them.
fn own_lines(interface: &str, text: &str) -> Option<String> {
    let owner = text.strip_prefix("# linerate ")?.split(':').next()?;
    if owner != interface {
        return own_lines(interface, &unwrap(owner, text)?);
    }
    let (rest, mark) = (text.strip_prefix(&heading(owner))?, mark(owner));
    let own = rest.split_inclusive('\n').filter(|line| !line.starts_with(&mark));
    Some(own.collect())
}

/// The text before `interface` came up; `None` if the file does not hold it. Interfaces that came
/// up later keep their servers.
fn unwrap(interface: &str, text: &str) -> Option<String> {
    let first = text.split_inclusive('\n').next()?;
    let owner = first.strip_prefix("# linerate ")?.split(':').next()?;
    let rest = text.strip_prefix(&heading(owner))?;
    let mark = mark(owner);
    let (mut own, mut previous) = (String::new(), String::new());
    for line in rest.split_inclusive('\n') {
        match line.strip_prefix(&mark) {
            Some(line) => previous += line,
            None => own += line,
        }
    }
    if owner == interface {
        return Some(previous);
    }
    Some(wrap(owner, &own, &unwrap(interface, &previous)?))
}

/// Debian's resolvconf(8) orders interfaces by the first pattern that fits; systemd's
/// takes the bare name only. The rule is wg-quick's.
fn interface_prefix() -> String {
    let order = fs::read_to_string(Path::new("/etc/resolvconf/interface-order"));
    let order = order.unwrap_or_default();
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

/// What a program prints.
fn output(program: &str, arguments: &[&str]) -> io::Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
    let output = unmask(&mut command).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(io::Error::other(format!("{program}: {}", output.status))),
    }
}

fn run(program: &str, arguments: &[&str], input: &str) -> io::Result<()> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut process = unmask(&mut command).spawn()?;
    if let Some(mut stdin) = process.stdin.take()
        && !input.is_empty()
    {
        stdin.write_all(input.as_bytes())?;
    }
    let status = process.wait()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{program}: {status}"))) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_former_text_stands_in_comments_and_comes_back() {
        let previous = "nameserver 192.0.2.53\nsearch a.example";
        let ours = wrap("wg0", "nameserver 10.9.0.2\n", previous);
        assert_eq!(
            ours,
            "# linerate wg0: what follows #wg0| was here, and comes back when wg0 goes down.\n\
             nameserver 10.9.0.2\n#wg0| nameserver 192.0.2.53\n#wg0| search a.example"
        );
        assert_eq!(unwrap("wg0", &ours).as_deref(), Some(previous));
        assert_eq!(unwrap("wg1", &ours), None);
    }

    #[test]
    fn interfaces_may_go_down_in_any_order() {
        let one = wrap("wg0", "nameserver 10.9.0.2\n", "nameserver 192.0.2.53\n");
        let both = wrap("wg1", "nameserver 10.8.0.2\n", &one);
        assert_eq!(unwrap("wg1", &both).as_deref(), Some(&*one));
        let other = wrap("wg1", "nameserver 10.8.0.2\n", "nameserver 192.0.2.53\n");
        assert_eq!(unwrap("wg0", &both), Some(other));
    }

    #[test]
    fn an_interface_has_its_own_lines_below_those_of_a_later_one() {
        let one = wrap("wg0", "nameserver 10.9.0.2\nsearch a b\n", "nameserver 192.0.2.53\n");
        let both = wrap("wg1", "nameserver 10.8.0.2\n", &one);
        let dns = |text| own_lines("wg0", text).map(|text| parse(&text));
        let own = Dns {
            servers: vec![NameServer::parse("10.9.0.2").unwrap()],
            search_domains: vec!["a".into(), "b".into()],
        };
        assert_eq!(dns(&one), Some(own.clone()));
        assert_eq!(dns(&both), Some(own));
        assert_eq!(dns("nameserver 192.0.2.53\n"), None);
    }

    #[test]
    fn servers_are_read_after_tabs_and_a_scope_is_no_part_of_an_address() {
        let text = "nameserver\t192.0.2.53\nnameserver   fd00::53%eth0\nnameserver fe80::1%eth0\n\
                    #nameserver 192.0.2.54\n";
        let expected: [IpAddr; 2] =
            ["192.0.2.53", "fd00::53"].map(|address| address.parse().unwrap());
        assert_eq!(listed(text).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_file_that_somebody_else_wrote_is_not_ours() {
        for text in ["", "nameserver 192.0.2.53\n", "# linerate\n", "# linerate wg0: hand-made\n"] {
            assert_eq!(unwrap("wg0", text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_text_comes_back(previous in "[^\\r]{0,40}(\\n[#| a-z0-9]{0,9}){0,4}\\n?") {
            let ours = wrap("wg0", "nameserver 10.9.0.2\n", &previous);
            prop_assert_eq!(unwrap("wg0", &ours), Some(previous));
        }
    }
}
