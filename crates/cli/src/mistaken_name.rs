//! Names of interfaces that are probably meant as commands. `linerate NAME` creates an interface, as
//! `wireguard-go NAME` does, so a mistyped command would create one.

use std::{ffi::OsStr, path::Path};

/// Commands of wg, wg-quick, tailscale and similar programs, with the replacement.
const FOREIGN: [(&str, &str); 62] = [
    ("add", "wg set"),
    ("addconf", "wg addconf"),
    ("apikeys", "linerate server apikeys"),
    ("bugreport", "linerate doctor"),
    ("cert", "linerate help"),
    ("close", "linerate down"),
    ("completion", "linerate help"),
    ("config", "linerate set"),
    ("configure", "linerate set"),
    ("connect", "linerate up"),
    ("create", "linerate up"),
    ("debug", "linerate doctor"),
    ("delete", "linerate down"),
    ("disable", "linerate down"),
    ("disconnect", "linerate down"),
    ("dns", "linerate status"),
    ("drive", "linerate help"),
    ("enable", "linerate up"),
    ("exit-node", "linerate set"),
    ("file", "linerate help"),
    ("funnel", "linerate help"),
    ("info", "linerate show"),
    ("init", "linerate join"),
    ("install", "linerate up"),
    ("ip", "linerate status"),
    ("kill", "linerate down"),
    ("licenses", "linerate help"),
    ("list", "linerate show"),
    ("login", "linerate join"),
    ("logs", "linerate show"),
    ("ls", "linerate show"),
    ("metrics", "linerate show"),
    ("nc", "linerate proxy"),
    ("nodes", "linerate server nodes"),
    ("open", "linerate up"),
    ("peers", "linerate show"),
    ("policy", "linerate server policy"),
    ("preauthkeys", "linerate server preauthkeys"),
    ("quit", "linerate down"),
    ("register", "linerate join"),
    ("remove", "linerate down"),
    ("restart", "linerate up"),
    ("run", "linerate up"),
    ("save", "wg showconf"),
    ("serve", "linerate server"),
    ("setconf", "linerate reload"),
    ("showconf", "wg showconf"),
    ("ssh", "ssh"),
    ("start", "linerate up"),
    ("stat", "linerate status"),
    ("stats", "linerate show"),
    ("stop", "linerate down"),
    ("strip", "wg-quick strip"),
    ("switch", "linerate join"),
    ("syncconf", "linerate reload"),
    ("tka", "linerate lock"),
    ("uninstall", "linerate leave"),
    ("update", "linerate reload"),
    ("upgrade", "linerate version"),
    ("usage", "linerate help"),
    ("users", "linerate server users"),
    ("web", "linerate help"),
];

/// The name of the program that takes a name only.
const WIREGUARD_GO: &str = "wireguard-go";

/// Whether any name is meant as an interface: it follows `--`, or the program has the name of wireguard-go.
pub(crate) fn is_unambiguous(mut arguments: impl Iterator<Item: AsRef<OsStr>>) -> bool {
    let program = arguments.next();
    let is_wireguard_go = program.is_some_and(|program| {
        Path::new(program.as_ref()).file_name() == Some(OsStr::new(WIREGUARD_GO))
    });
    is_wireguard_go || arguments.any(|argument| argument.as_ref() == "--")
}

/// The command that was probably meant by a name of an interface. `commands` are the names of linerate's own.
pub(crate) fn meant_command<'a>(
    name: &str,
    commands: impl Iterator<Item = &'a str>,
) -> Option<String> {
    // Names of interfaces usually end with a number.
    if name.ends_with(|last: char| last.is_ascii_digit()) {
        return None;
    }
    if let Some((_, replacement)) = FOREIGN.iter().find(|(foreign, _)| *foreign == name) {
        return Some((*replacement).to_owned());
    }
    let allowed = match name.len() {
        0..=3 => 0,
        4..=5 => 1,
        _ => 2,
    };
    let distance = |command: &str| strsim::damerau_levenshtein(name, command);
    let close = commands.map(|command| (distance(command), command));
    let (_, command) = close.filter(|(distance, _)| *distance <= allowed).min()?;
    Some(format!("linerate {command}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(name: &str) -> Option<String> {
        let command = crate::command();
        meant_command(name, command.get_subcommands().map(clap::Command::get_name))
    }

    #[test]
    fn foreign_and_mistyped_commands_have_a_suggestion() {
        for (name, command) in [
            ("versoin", "linerate version"),
            ("funnel", "linerate help"),
            ("nodes", "linerate server nodes"),
            ("login", "linerate join"),
            ("stop", "linerate down"),
            ("stauts", "linerate status"),
            ("statsu", "linerate status"),
            ("shwo", "linerate show"),
            ("donw", "linerate down"),
            ("genkye", "linerate genkey"),
            ("netchek", "linerate netcheck"),
        ] {
            assert_eq!(meant(name).as_deref(), Some(command), "{name}");
        }
    }

    #[test]
    fn usual_names_of_interfaces_are_accepted() {
        let names =
            ["wg0", "wg-home", "home", "work", "tun", "utun", "vpn", "wgs", "office", "mullvad-de"];
        for name in
            [&names[..], &["server1", "up0", "nordlynx", "tailnet0", "hub", "lan", "wan"]].concat()
        {
            assert_eq!(meant(name), None, "{name}");
        }
    }

    #[test]
    fn foreign_names_are_sorted_and_none_is_a_command_of_ours() {
        assert!(FOREIGN.is_sorted());
        let command = crate::command();
        for ours in command.get_subcommands().map(clap::Command::get_name) {
            assert!(FOREIGN.iter().all(|(foreign, _)| *foreign != ours), "{ours}");
        }
    }

    #[test]
    fn any_name_is_accepted_after_two_dashes_or_for_wireguard_go() {
        assert!(!is_unambiguous(["/usr/bin/linerate", "status"].iter()));
        assert!(is_unambiguous(["linerate", "-f", "--", "status"].iter()));
        assert!(is_unambiguous(["/usr/bin/wireguard-go", "status"].iter()));
    }
}
