//! The folder and terminal of hooks, and the errors that `linerate down` and syslog receive.

use std::{os::unix::net::UnixDatagram, time::Duration};

use netns::{Host, INTERFACE, Implementation, Key, eventually, linerate};

use crate::up::PATIENCE;

/// A host, and a configuration file with a key and these lines.
fn host(lines: &str) -> (Host, &'static str) {
    let host = Host::new("alone");
    host.run("chmod 700 /run/rig; mkdir -p /run/wireguard /run/rig/conf /run/rig/here");
    write(&host, lines);
    (host, "/run/rig/conf/wg0.conf")
}

fn write(host: &Host, lines: &str) {
    let text = format!(
        "[Interface]\nPrivateKey = {}\nAddress = 10.9.0.1/24\n{lines}\n",
        Key::generate().private
    );
    host.write_secret("conf/wg0.conf", &text);
}

/// Runs linerate in this folder, with this shell's redirections.
fn linerate_in(host: &Host, folder: &str, arguments: &str, redirections: &str) -> bool {
    let program = Implementation::Linerate.path();
    host.attempt(format!("cd {folder}; {} {arguments} {redirections}", program.display())).ok
}

#[test]
fn hooks_have_the_terminal_of_their_command_and_its_folder_or_that_of_the_file() {
    let hook = |key: &str| {
        format!(
            "{key} = read -t 9 typed </dev/tty; read -t 9 more; \
             echo {key} $typed $more $(tty) $PWD $INTERFACE $CONFIG_FILE >>/run/rig/log; ./script\n"
        )
    };
    let hooks = ["PreUp", "PostUp", "PreDown", "PostDown"].map(hook).concat();
    let (host, file) = host(&hooks);
    for folder in ["here", "conf"] {
        let path = host.write(&format!("{folder}/script"), "#!/bin/sh\necho the script ran\n");
        host.run(format!("chmod +x {path}"));
    }
    let program = Implementation::Linerate.path();
    let types = |verb: &str, words: &str| {
        // Each line is typed after the previous hook has read its own.
        let command = format!("{} {verb} {file}", program.display());
        let typed = format!("for word in {words}; do sleep 0.5; echo $word; done");
        let output = "/run/rig/typescript";
        host.run(format!(
            "cd /run/rig/here; ({typed}) | script -qec '{command}' {output} >/dev/null"
        ));
        let output = host.read(output);
        assert_eq!(output.matches("the script ran").count(), 2, "{output}");
    };
    types("up", "one two three four");
    types("down", "five six seven eight");
    let log = host.read("/run/rig/log");
    let expected = [
        ("PreUp one two", "/run/rig/here"),
        ("PostUp three four", "/run/rig/here"),
        ("PreDown five six", "/run/rig/conf"),
        ("PostDown seven eight", "/run/rig/conf"),
    ];
    assert_eq!(log.lines().count(), expected.len(), "{log}");
    for (line, (output, folder)) in log.lines().zip(expected) {
        let end = format!(" {folder} wg0 {file}");
        assert!(line.starts_with(&format!("{output} /dev/pts/")) && line.ends_with(&end), "{log}");
    }
}

#[test]
fn hooks_have_the_standard_input_of_up_in_the_background_and_in_the_foreground() {
    let (host, file) = host("PreUp = read a; echo $a >/run/rig/said\nPostUp = cat >>/run/rig/said");
    let input = "<<<$'one\\ntwo' >/run/rig/up.log 2>&1";
    assert!(linerate_in(&host, "/run/rig/here", &format!("up {file}"), input));
    assert_eq!(host.read("/run/rig/said"), "one\ntwo\n");
    assert!(linerate(&host, "down wg0").ok);
    host.run("rm /run/rig/said");
    let background = format!("{input} & disown");
    assert!(linerate_in(&host, "/run/rig/here", &format!("up -f {file}"), &background));
    let output = || host.has("/run/rig/said") && host.read("/run/rig/said") == "one\ntwo\n";
    eventually("both hooks ran", PATIENCE, output);
    assert!(linerate(&host, "down wg0").ok);
}

#[test]
fn a_hook_inherits_no_file_and_only_the_listed_variables() {
    let hooks = ["PreUp", "PostUp", "PreDown", "PostDown"].map(|key| {
        format!("{key} = ls -l /proc/self/fd >>/run/rig/files; env >>/run/rig/variables\n")
    });
    let (host, file) = host(&hooks.concat());
    let with = |verb: &str| {
        let program = Implementation::Linerate.path();
        host.run(format!(
            "SECRET=x WG_OWN=y GPG_TTY=z {} {verb} {file} 9<{file} </dev/null >/dev/null 2>&1",
            program.display()
        ));
    };
    with("up");
    with("down");
    let files = host.read("/run/rig/files");
    assert!(!files.contains("wg0.conf") && !files.contains("socket:"), "{files}");
    let variables = host.read("/run/rig/variables");
    for (variable, count) in
        [("SECRET=", 0), ("WG_OWN=y", 4), ("GPG_TTY=z", 4), ("INTERFACE=wg0", 4)]
    {
        let times = variables.lines().filter(|line| line.starts_with(variable)).count();
        assert_eq!(times, count, "{variable}: {variables}");
    }
}

#[test]
fn an_interface_stays_until_its_hook_succeeds_and_down_reports_it() {
    let (host, file) = host(
        "PreDown = echo the rule stays >&2; test -e /run/rig/ok\nPostDown = echo it is gone; exit 4",
    );
    assert!(linerate(&host, &format!("up {file}")).ok);
    for _ in 0..2 {
        let down = linerate(&host, "down wg0");
        let output = "the rule stays\nlinerate: PreDown = echo the rule stays >&2; test -e /run/rig/ok: \
                    exit status: 1\nlinerate: PreDown failed: wg0 stays up";
        assert!(!down.ok && down.stderr.starts_with(output), "{}", down.stderr);
        assert!(host.has_device(INTERFACE) && host.attempt("wg show wg0").ok);
    }
    host.run("touch /run/rig/ok");
    let down = linerate(&host, "down wg0");
    let output = "the rule stays\nit is gone\nlinerate: PostDown = echo it is gone; exit 4: exit status: 4\n";
    assert!(!down.ok && down.stderr.starts_with(output), "{}", down.stderr);
    assert!(!host.has_device(INTERFACE) && host.daemon_of(INTERFACE).is_none());
}

/// A peer that was added at run time.
fn add_peer(host: &Host) -> String {
    let key = Key::generate().public;
    host.run(format!("wg set wg0 peer {key} allowed-ips 10.9.0.7/32"));
    key
}

#[test]
fn if_the_state_cannot_be_saved_the_interface_stays_or_another_file_is_used() {
    let (host, file) = host("SaveConfig = true");
    host.run("mount --bind /run/rig/conf /run/rig/conf");
    assert!(linerate(&host, &format!("up {file}")).ok);
    let peer = add_peer(&host);
    host.run("mount -o remount,ro,bind /run/rig/conf");
    let down = linerate(&host, "down wg0");
    let output = format!("linerate: SaveConfig: {file}: Read-only file system");
    assert!(!down.ok && down.stderr.starts_with(&output), "{}", down.stderr);
    assert!(down.stderr.contains("wg0 stays up"), "{}", down.stderr);
    assert!(host.run("wg show wg0 peers").contains(&peer));

    let log = listen_to_syslog(&host);
    // The peer opens its own connection at its start.
    let pid = host.daemon_of(INTERFACE).expect("it runs");
    host.run(format!("kill -TERM {pid}"));
    eventually("it is gone", PATIENCE, || host.daemon_of(INTERFACE).is_none());
    let elsewhere = "/run/linerate/up/wg0.conf";
    eventually("it is saved", PATIENCE, || host.has(elsewhere));
    assert!(host.read(elsewhere).contains(&peer));
    assert!(host.run(format!("stat -c %a {elsewhere}")).starts_with("600"));
    drop(log);

    host.run("mount -o remount,rw,bind /run/rig/conf");
    assert!(linerate(&host, &format!("up {file}")).ok);
    let peer = add_peer(&host);
    let down = linerate(&host, "down wg0");
    assert!(down.ok && down.stderr.is_empty(), "{}", down.stderr);
    assert!(host.read(file).contains(&peer));
}

/// Mounts a private /dev on the host, and listens there as syslog.
fn listen_to_syslog(host: &Host) -> UnixDatagram {
    host.run(
        "mkdir -p /run/rig/dev; mountpoint -q /run/rig/dev || mount --rbind /dev /run/rig/dev; \
         mount -t tmpfs tmpfs /dev; mkdir /dev/net /dev/pts /dev/shm; \
         for folder in net pts shm; do mount --rbind /run/rig/dev/$folder /dev/$folder; done; \
         for file in null zero tty random urandom; do \
         touch /dev/$file; mount --bind /run/rig/dev/$file /dev/$file; done; \
         ln -s /proc/self/fd /dev/fd",
    );
    let syslog = UnixDatagram::bind(host.outside("/dev/log")).expect("the host's /dev is writable");
    syslog.set_read_timeout(Some(Duration::from_secs(1))).expect("a second is no zero");
    syslog
}

/// All messages until none arrives for a second.
fn messages(syslog: &UnixDatagram) -> Vec<String> {
    let mut text = [0; 4096];
    let next = || {
        let length = syslog.recv(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text[..length]).into_owned())
    };
    std::iter::from_fn(next).collect()
}

/// The lines of proc_net(5) with the datagram sockets (type 0002) that a process has open.
fn unix_datagram_sockets(host: &Host, pid: u32) -> Vec<String> {
    let open = host.run(format!("find /proc/{pid}/fd -lname 'socket:*' -printf '%l\\n'"));
    let open: Vec<_> = open.lines().map(|link| link.replace(['[', ']'], ":")).collect();
    let is_open = |line: &&str| {
        let words: Vec<_> = line.split_whitespace().collect();
        words.get(4) == Some(&"0002")
            && open.iter().any(|link| link.ends_with(&format!(":{}:", words[6])))
    };
    let all = host.run(format!("cat /proc/{pid}/net/unix"));
    all.lines().filter(is_open).map(str::to_owned).collect()
}

#[test]
fn background_errors_are_in_syslog_in_addition_to_a_commands_output() {
    let (host, file) = host("PreDown = echo hook; false\nPostDown = exit 5");
    let syslog = listen_to_syslog(&host);
    assert!(linerate(&host, &format!("up {file}")).ok);
    assert_eq!(messages(&syslog), [""; 0], "before any error");
    let pid = host.daemon_of(INTERFACE).expect("it runs");
    // By one it could send to any socket of root.
    assert_eq!(unix_datagram_sockets(&host, pid), [""; 0]);
    host.run(format!("kill -TERM {pid}"));
    eventually("it is gone", PATIENCE, || host.daemon_of(INTERFACE).is_none());
    let output = messages(&syslog);
    let has = |text: &str| output.iter().any(|message| message.contains(text));
    // The guardian and the confined peer.
    assert!(has("]: PreDown = echo hook; false: exit status: 1\n"), "{output:?}");
    assert!(has(&format!("<27>linerate[{pid}]: PreDown failed\n")), "{output:?}");
    assert!(has("hook\n") && has("]: PostDown = exit 5: exit status: 5\n"), "{output:?}");
    assert!(!host.has_device(INTERFACE), "a signal cannot be refused");
}

/// Secret stores have such links.
#[test]
fn the_interface_has_the_name_of_a_link_and_the_file_is_its_target() {
    let (host, file) =
        host("SaveConfig = true\nPostUp = echo $INTERFACE $CONFIG_FILE >/run/rig/said");
    host.run(format!(
        "mkdir /run/rig/store; mv {file} /run/rig/store/secret-of-1; \
         ln -s store/secret-of-1 /run/rig/middle; ln -s ../middle {file}"
    ));
    for down in ["wg0", file] {
        assert!(linerate(&host, &format!("up {file}")).ok);
        assert!(host.has_device("wg0"));
        assert_eq!(host.read("/run/rig/said"), "wg0 /run/rig/store/secret-of-1\n");
        let reload = linerate(&host, &format!("reload {file}"));
        assert!(reload.ok, "{}", reload.stderr);
        let peer = add_peer(&host);
        let done = linerate(&host, &format!("down {down}"));
        assert!(done.ok && !host.has_device("wg0"), "{}", done.stderr);
        assert!(host.read("/run/rig/store/secret-of-1").contains(&peer));
        host.run(format!("test -L {file} && test -L /run/rig/middle"));
    }
    // Neither the link's name nor that of its target is a file name of wg-quick.
    host.run("ln -s store/secret-of-1 /run/rig/secret");
    let refused = linerate(&host, "up /run/rig/secret");
    assert!(!refused.ok && refused.stderr.contains("NAME.conf"), "{}", refused.stderr);
    assert!(linerate(&host, "up --name wg7 /run/rig/secret").ok && host.has_device("wg7"));
    assert!(linerate(&host, "reload --name wg7 /run/rig/secret").ok);
    assert!(linerate(&host, "down wg7").ok);
}

#[test]
fn a_pipe_is_named_by_its_link_or_the_command_line() {
    let (host, file) = host("PostUp = echo $INTERFACE $CONFIG_FILE >/run/rig/said");
    let up = |arguments: &str, redirections: &str| {
        let redirections = format!("{redirections} >/run/rig/up.log 2>&1");
        (linerate_in(&host, "/run/rig", arguments, &redirections), host.read("/run/rig/up.log"))
    };
    let descriptor = format!("<(cat {file})");
    let (done, output) = up(&format!("up {descriptor}"), "</dev/null");
    assert!(
        !done && output.contains("a pipe does not name the interface: use `--name NAME`"),
        "{output}"
    );
    host.run("ln -s /dev/stdin /run/rig/wg1.conf; mkfifo -m 600 /run/rig/wg2.conf");
    host.run(format!("setsid sh -c 'cat {file} >/run/rig/wg2.conf' </dev/null >/dev/null 2>&1 &"));
    for (arguments, redirections, name, path) in [
        (format!("up --name wg0 {descriptor}"), "</dev/null".to_owned(), "wg0", "/dev/fd/"),
        ("up --name wg0 /dev/stdin".into(), format!("<{file}"), "wg0", file),
        ("up ./wg1.conf".into(), format!("< <(cat {file})"), "wg1", "/run/rig/wg1.conf"),
        ("up ./wg2.conf".into(), "</dev/null".into(), "wg2", "/run/rig/wg2.conf"),
        ("up /dev/fd/9".into(), format!("9<{file} </dev/null"), "wg0", file),
    ] {
        let (done, output) = up(&arguments, &redirections);
        assert!(done && host.has_device(name), "{arguments}: {output}");
        let known = host.read("/run/rig/said");
        assert!(known.starts_with(&format!("{name} {path}")), "{arguments}: {known}");
        assert!(linerate(&host, &format!("down {name}")).ok, "{arguments}");
    }
    write(&host, "SaveConfig = true");
    let (done, output) = up(&format!("up --name wg0 {descriptor}"), "</dev/null");
    assert!(!done && output.contains("SaveConfig: this is not a file to write to"), "{output}");
    assert!(!host.has_device("wg0"));
}
