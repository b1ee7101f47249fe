//! Common programs through a proxy that runs as `nobody`: ssh and scp, dig, iperf3, a browser.
//!
//! A missing program is skipped with an announcement; with `LINERATE_NETNS_CLIENTS=all`
//! (`make test-clients`) it is a failure.

use std::process::Command;

use super::*;

/// SSH through a proxy, by its client's `ProxyCommand`, or through a forward.
const DIRECTIONS: [&str; 3] = [
    "-o ProxyCommand='nc -X 5 -x 127.0.0.1:1080 %h %p' 10.9.0.2",
    "-o ProxyCommand='nc -X connect -x 127.0.0.1:8080 %h %p' fd09::2",
    "-p 8022 127.0.0.1",
];

/// Bytes of a file that is copied.
const FILE: u32 = 8_000_000;

/// Whether these programs are installed where they work.
fn are_installed(programs: &[&str]) -> bool {
    let missing = |program: &&&str| {
        let mut find = Command::new("bash");
        let find = find.args(["-c", "type -P \"$0\"", program]).stdout(Stdio::null());
        !find.status().is_ok_and(|status| status.success())
    };
    let missing: Vec<_> = programs.iter().filter(missing).collect();
    assert!(missing.is_empty() || !all_are_required(), "not installed: {missing:?}");
    missing.iter().for_each(|program| skip(program));
    missing.is_empty() && !lacks_users()
}

fn all_are_required() -> bool {
    env::var_os("LINERATE_NETNS_CLIENTS").is_some_and(|which| which == "all")
}

/// A proxy that `nobody` runs.
fn unprivileged_proxy(lines: &str) -> World {
    let mut world = world();
    world.serve_files();
    let conf = world.conf(&format!("{SERVICES}{lines}"));
    world.start(&world.unprivileged_user(&conf), &conf);
    world
}

/// An SSH server on right, and a key for left.
fn serve_ssh(world: &World) {
    let right = &world.right.host;
    right.run("mkdir -p /run/sshd && ssh-keygen -q -t ed25519 -N '' -f /run/rig/host");
    world.left.run("ssh-keygen -q -t ed25519 -N '' -f /run/rig/key");
    right.write("authorized", &world.left.read("/run/rig/key.pub"));
    let conf = right.write(
        "sshd.conf",
        "HostKey /run/rig/host\nAuthorizedKeysFile /run/rig/authorized\nStrictModes no\n\
         PermitRootLogin yes\nUsePAM no\nPidFile none\nSubsystem sftp internal-sftp\n",
    );
    right.run(format!("$(type -P sshd) -f {conf} </dev/null >/dev/null 2>&1"));
    eventually("sshd listens", PATIENCE, || right.listens(22));
}

/// A command with a file as input, and files copied in both directions.
fn ssh(world: &World, ways: &[&str]) {
    let options = "-q -F none -i /run/rig/key -o BatchMode=yes -o StrictHostKeyChecking=no \
                   -o UserKnownHostsFile=/dev/null -o ConnectTimeout=20";
    let left = &world.left;
    left.run(format!("head -c {FILE} /dev/urandom >/run/rig/file"));
    let sum = |host: &Host, file: &str| host.run(format!("sha256sum </run/rig/{file}"));
    for (number, way) in ways.iter().enumerate() {
        let answer =
            left.run(format!("ssh {options} {way} 'echo $((6 * 7)); wc -c' </run/rig/file"));
        assert_eq!(answer.split_whitespace().collect::<Vec<_>>(), ["42", &FILE.to_string()]);
        // scp uses another letter for the port, and has the host in brackets with its file.
        let (way, host) = way.rsplit_once(' ').expect("a host");
        let way = way.replace("-p ", "-P ");
        let there = format!("'[{host}]:/run/rig/there{number}'");
        left.run(format!("scp {options} {way} /run/rig/file {there}"));
        left.run(format!("scp {options} {way} {there} /run/rig/back{number}"));
        let expected = sum(left, "file");
        assert_eq!(sum(&world.right.host, &format!("there{number}")), expected, "{way}");
        assert_eq!(sum(left, &format!("back{number}")), expected, "{way}");
    }
}

#[test]
fn ssh_and_scp_go_through_both_proxies_and_a_forward() {
    if !are_installed(&["ssh", "scp", "sshd", "nc"]) {
        return;
    }
    let world = unprivileged_proxy("Forward = tcp 127.0.0.1:8022 -> 10.9.0.2:22");
    serve_ssh(&world);
    ssh(&world, &DIRECTIONS);
}

#[test]
fn ssh_works_through_a_proxy_without_a_namespace() {
    if !are_installed(&["ssh", "scp", "sshd", "nc"]) {
        return;
    }
    let mut world = world();
    let conf = world.conf(SERVICES);
    world.start_on("auto", &forbidden(), &conf);
    let shown = world.left.run(format!("{} show", linerate()));
    assert!(shown.contains("stack: in-process"), "{shown}");
    serve_ssh(&world);
    ssh(&world, &DIRECTIONS[..1]);
}

/// A DNS server on right with an address and a long text.
fn serve_long_text(world: &World) {
    let text = "a".repeat(250);
    let texts = [text.as_str(); 4].join(",");
    let names = format!(
        "--edns-packet-max=1232 --host-record=web.example,10.9.0.7 \
         --txt-record=text.example,{texts}"
    );
    serve_names(&world.right.host, &["10.9.0.2", "fd09::2"], &names);
}

/// Questions of a DNS client, and the expected text of the answers.
const QUESTIONS: [(&str, &str); 3] = [
    ("web.example A", "10.9.0.7"),
    ("text.example TXT", "aaaaaaaaaa"),
    ("no.example A", "NXDOMAIN"),
];

/// The client's own wrapper uses SOCKS5.
#[test]
fn a_wrapped_dns_client_uses_datagrams_of_an_association() {
    if !are_installed(&["kdig", "socksify", "dnsmasq"]) {
        return;
    }
    let world = unprivileged_proxy("");
    serve_long_text(&world);
    let conf = world.left.write(
        "socks.conf",
        "route {\n from: 0.0.0.0/0 to: 0.0.0.0/0 via: 127.0.0.1 port = 1080\n \
         proxyprotocol: socks_v5\n protocol: udp\n command: udpassociate\n method: none\n}\n",
    );
    for (question, expected) in QUESTIONS {
        let kdig =
            format!("kdig +notcp +ignore +bufsize=1232 +retry=0 +time=15 @10.9.0.2 {question}");
        let output = world.left.run(format!("SOCKS_CONF={conf} socksify {kdig} 2>/dev/null"));
        assert!(output.contains(expected) && output.contains("(UDP)"), "{question}: {output}");
    }
}

/// No wrapper works for dig, which calls the kernel directly. So the test acts as the SOCKS5 client
/// and relays dig's datagrams.
#[test]
fn dig_uses_datagrams_of_an_association() {
    if !are_installed(&["dig", "dnsmasq"]) {
        return;
    }
    let world = unprivileged_proxy("");
    serve_long_text(&world);
    let association = world.left.inside(|| {
        let (connection, relay) = associate();
        let (socket, dig) = (client(&relay.to_string()), UdpSocket::bind("127.0.0.1:5353"));
        in_background("dig", move || carry(&socket, &dig.expect("the port is free")));
        connection
    });
    for (question, expected) in QUESTIONS {
        let dig = format!("dig +notcp +ignore +tries=1 +time=15 -p 5353 @127.0.0.1 {question}");
        let output = world.left.run(&dig);
        assert!(output.contains(expected) && output.contains("(UDP)"), "{question}: {output}");
    }
    drop(association);
}

/// Relays one question after the other through an association, and the answers back.
fn carry(association: &UdpSocket, dig: &UdpSocket) {
    const HEADER: [u8; 10] = [0, 0, 0, 1, 10, 9, 0, 2, 0, 53];
    let mut datagram = [0; 4096];
    while let Ok((len, from)) = dig.recv_from(&mut datagram) {
        let question = [&HEADER, &datagram[..len]].concat();
        let answered = association.send(&question).and_then(|_| association.recv(&mut datagram));
        let Ok(len) = answered else { return };
        assert_eq!(datagram[..10], HEADER, "it has another sender");
        let _ = dig.send_to(&datagram[10..len], from);
    }
}

/// `proxychains4` connects for a program without proxy support.
#[test]
fn iperf3_measures_through_both_proxies() {
    if !are_installed(&["iperf3", "proxychains4"]) {
        return;
    }
    let world = unprivileged_proxy("");
    world.right.host.run("iperf3 -s -D >/dev/null 2>&1 </dev/null");
    eventually("iperf3 serves", PATIENCE, || world.right.host.listens(5201));
    for proxy in ["socks5 127.0.0.1 1080", "http 127.0.0.1 8080"] {
        let text = format!("strict_chain\n[ProxyList]\n{proxy}\n");
        let conf = world.left.write("proxychains.conf", &text);
        for way in ["-P 4", "--reverse"] {
            // A small fixed number of bytes may still be in buffers when iperf3 counts.
            let line = format!("iperf3 -c 10.9.0.2 -t 1 --json {way}");
            let output = iperf3(&world.left, &format!("proxychains4 -q -f {conf} {line}"));
            let rate = output.rsplit_once("\"sum_received\"").and_then(|(_, output)| {
                output.split_once("\"bits_per_second\":")?.1.split(',').next()?.trim().parse().ok()
            });
            assert!(rate.is_some_and(|rate: f64| rate > 0.0), "{proxy} {way}: {output}");
        }
    }
}

/// A page with a style, a script, a picture and requests of the script. The script writes the
/// results to the page's last paragraph.
const PAGE: &str = r"<!doctype html><title>page</title><link rel=stylesheet href=style.css>
<p id=report>nothing<img id=picture src=picture.png><iframe id=frame src=frame.html></iframe>
<script src=script.js></script>";

/// One pixel.
const PICTURE: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJ\
                       RU5ErkJggg==";

const SCRIPT: &str = r#"addEventListener("load", async () => {
  const all = await Promise.all([...Array(20).keys()].map(async (number) => {
    const answer = await fetch("data.json?" + number);
    return (await answer.json()).value;
  }));
  const { color } = getComputedStyle(document.body);
  const width = document.getElementById("picture").naturalWidth;
  const frame = document.getElementById("frame").contentDocument.title;
  const sum = all.reduce((a, b) => a + b, 0);
  document.getElementById("report").innerText = ["report", color, width, frame, sum].join("|");
});"#;

#[test]
fn a_browser_loads_a_page_with_its_resources_through_both_proxies() {
    if !all_are_required() {
        return skip("make test-clients");
    }
    if !are_installed(&["chromium"]) {
        return;
    }
    let world = unprivileged_proxy("");
    let right = &world.right.host;
    services::names(right, &["10.9.0.2"]);
    for (name, text) in [
        ("page.html", PAGE),
        ("script.js", SCRIPT),
        ("style.css", "body { color: rgb(1, 2, 3) }"),
        ("frame.html", "<title>framed</title>"),
        ("data.json", r#"{"value": 7}"#),
    ] {
        right.write(&format!("www/{name}"), text);
    }
    right.run(format!("base64 -d <<<{PICTURE} >/run/rig/www/picture.png"));
    let chromium = "chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
                    --no-first-run --disable-background-networking --user-data-dir=/run/rig/profile \
                    --virtual-time-budget=20000 --dump-dom";
    for proxy in ["socks5://127.0.0.1:1080", "http://127.0.0.1:8080"] {
        for host in ["10.9.0.2", "[fd09::2]", services::NAME] {
            let line = format!("{chromium} --proxy-server={proxy} http://{host}/page.html");
            let output =
                world.left.attempt(format!("HOME=/run/rig {line} 2>/run/rig/chromium.log"));
            let report = "report|rgb(1, 2, 3)|1|framed|140";
            assert!(output.stdout.contains(report), "{proxy} {host}: {output:?}");
        }
    }
}
