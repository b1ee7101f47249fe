//! Name resolution through the tunnel. It is configured in systemd-resolved if this host uses it,
//! else with resolvconf(8) if it is installed, else in `/etc/resolv.conf`, where comments preserve
//! the previous text:
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
/// Folder of systemd-resolved, with files that `/etc/resolv.conf` may be a link to.
const RESOLVED_FOLDER: &str = "/run/systemd/resolve";
/// Its file with the upstream name servers.
const RESOLVED_SERVERS: &str = "/run/systemd/resolve/resolv.conf";
/// Its stub resolvers.
const RESOLVED_STUBS: [&str; 2] = ["nameserver 127.0.0.53", "nameserver 127.0.0.54"];

/// Directs name resolution to `dns`. If `domains` is not empty and the host uses systemd-resolved,
/// only names in these domains are resolved by `dns`.
pub fn set(
    interface: &str,
    dns: &Dns,
    domains: &[String],
    log: &mut UndoLog,
) -> anyhow::Result<()> {
    if resolved_answers() {
        match configure_resolved(interface, dns, domains) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // Its settings are removed together with the interface.
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

/// Whether this host sends its queries to systemd-resolved.
fn resolved_answers() -> bool {
    fs::canonicalize(RESOLV_CONF).is_ok_and(|path| path.starts_with(RESOLVED_FOLDER))
        || read_file()
            .is_ok_and(|text| text.lines().any(|line| RESOLVED_STUBS.contains(&line.trim())))
}

/// Configures systemd-resolved. The domain `~.` directs all names to these servers, like
/// `resolvconf -x` of wg-quick.
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

/// Reverts the settings of an interface in systemd-resolved.
///
/// # Errors
/// systemd-resolved refuses.
pub fn revert_resolved(interface: &str) -> anyhow::Result<()> {
    if resolved_answers() {
        run("resolvectl", &["revert", interface], "").context("resolvectl")?;
    }
    Ok(())
}

/// The name servers of this host without those of `interface`, which are `own`. The stub address
/// of systemd-resolved and link-local addresses, which need a scope, are left out.
pub fn other_servers(interface: &str, own: &[IpAddr]) -> Vec<IpAddr> {
    let text = if resolved_answers() {
        fs::read_to_string(RESOLVED_SERVERS).unwrap_or_default()
    } else {
        let text = read_file().unwrap_or_default();
        unwrap(interface, &text).unwrap_or(text)
    };
    listed(&text).filter(|server| !own.contains(server)).collect()
}

/// The addresses of name servers in `text` that need no scope.
fn listed(text: &str) -> impl Iterator<Item = IpAddr> {
    let addresses = parse(text).servers.into_iter().map(|server| server.address);
    addresses.filter(|ip| !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local()))
}

/// The current name servers and search domains of `interface` on this host. Returns `in_file`,
/// those at the start, if the host does not show the current ones.
pub fn current(interface: &str, in_file: &Dns) -> Dns {
    if resolved_answers() {
        return current_resolved(interface).unwrap_or_else(|| in_file.clone());
    }
    let name = format!("{}{interface}", interface_prefix());
    match output("resolvconf", &["-l", &name]) {
        Ok(text) => return parse(&text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        // Debian's resolvconf(8) does not print them. wg-quick reads this file, too.
        Err(_) => {
            let kept = Path::new("/etc/resolvconf/run/interface").join(&name);
            return parse(&fs::read_to_string(kept).unwrap_or_default());
        }
    }
    let own = read_file().ok().and_then(|text| own_lines(interface, &text));
    own.map_or_else(|| in_file.clone(), |text| parse(&text))
}

/// The settings in systemd-resolved; `None` if it does not answer.
fn current_resolved(interface: &str) -> Option<Dns> {
    let words = |what: &str| {
        let text = output("resolvectl", &[what, interface]).ok()?;
        // Link 5 (wg0): 10.9.0.2 fd09::2
        let (_, words) = text.split_once("):")?;
        Some(words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    };
    let servers = words("dns")?.iter().filter_map(|server| NameServer::parse(server)).collect();
    // `~.` is not a search domain: `configure_resolved` adds it.
    let search_domains = words("domain")?.into_iter().filter(|domain| domain != "~.").collect();
    Some(Dns { servers, search_domains })
}

/// Parses resolv.conf(5).
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

/// Watches the files that determine the result of [`other_servers`].
///
/// # Errors
/// The kernel is out of memory.
pub fn watch_changes() -> io::Result<FileChanges> {
    FileChanges::new(&[Path::new(RESOLV_CONF), Path::new(RESOLVED_SERVERS)])
}

fn words<'a>(first: &[&'a str], others: &'a [String]) -> Vec<&'a str> {
    first.iter().copied().chain(others.iter().map(String::as_str)).collect()
}

/// Removes the servers with this name from resolvconf(8).
pub fn remove_from_resolvconf(name: &str) -> io::Result<()> {
    run("resolvconf", &["-d", name, "-f"], "")
}

/// Whether the file contains the text from before `interface` came up.
pub fn file_is_ours(interface: &str) -> bool {
    read_file().is_ok_and(|text| unwrap(interface, &text).is_some())
}

/// Restores the previous text of the file, unless another program has replaced it since.
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

/// Returns `text` followed by the previous text in comments.
fn wrap(interface: &str, text: &str, previous: &str) -> String {
    let mark = mark(interface);
    let kept = previous.split_inclusive('\n').map(|line| format!("{mark}{line}"));
    heading(interface) + text + &kept.collect::<String>()
}

/// The lines that `interface` added; `None` if the file does not contain them.
fn own_lines(interface: &str, text: &str) -> Option<String> {
    let owner = text.strip_prefix("# linerate ")?.split(':').next()?;
    if owner != interface {
        return own_lines(interface, &unwrap(owner, text)?);
    }
    let (rest, mark) = (text.strip_prefix(&heading(owner))?, mark(owner));
    let own = rest.split_inclusive('\n').filter(|line| !line.starts_with(&mark));
    Some(own.collect())
}

/// The text from before `interface` came up; `None` if the file does not contain it. The servers
/// of interfaces that came up later are preserved.
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

/// The prefix of interface names for resolvconf(8), as in wg-quick. Debian's resolvconf orders
/// interfaces by the first pattern that matches; that of systemd accepts only the bare name.
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

/// Runs a program and returns its output.
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
    fn previous_text_is_preserved_in_comments_and_restored() {
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
    fn texts_are_restored_in_any_order_of_interfaces() {
        let one = wrap("wg0", "nameserver 10.9.0.2\n", "nameserver 192.0.2.53\n");
        let both = wrap("wg1", "nameserver 10.8.0.2\n", &one);
        assert_eq!(unwrap("wg1", &both).as_deref(), Some(&*one));
        let other = wrap("wg1", "nameserver 10.8.0.2\n", "nameserver 192.0.2.53\n");
        assert_eq!(unwrap("wg0", &both), Some(other));
    }

    #[test]
    fn lines_of_an_interface_are_found_below_those_of_a_later_one() {
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
    fn servers_are_parsed_after_tabs_and_without_scopes() {
        let text = "nameserver\t192.0.2.53\nnameserver   fd00::53%eth0\nnameserver fe80::1%eth0\n\
                    #nameserver 192.0.2.54\n";
        let expected: [IpAddr; 2] =
            ["192.0.2.53", "fd00::53"].map(|address| address.parse().unwrap());
        assert_eq!(listed(text).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn file_by_another_program_is_not_unwrapped() {
        for text in ["", "nameserver 192.0.2.53\n", "# linerate\n", "# linerate wg0: hand-made\n"] {
            assert_eq!(unwrap("wg0", text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn wrapped_text_is_restored(previous in "[^\\r]{0,40}(\\n[#| a-z0-9]{0,9}){0,4}\\n?") {
            let ours = wrap("wg0", "nameserver 10.9.0.2\n", &previous);
            prop_assert_eq!(unwrap("wg0", &ours), Some(previous));
        }
    }
}
