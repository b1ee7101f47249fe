//! Features that users of stock clients expect of a network, end to end.

use netns::{
    Family, Host, Lan, Member, MemberKind, Tailnet, Uplink, eventually, forward, ping, serve_names,
};
use serde_json::{Value, json};

use super::policy::set;
use super::{PATIENCE, join, number, start};

const NETWORK: &str = Lan::NETWORK;
const BEHIND: &str = Lan::HOST;
const WORLD: &str = Lan::WORLD;

const DNS: &str = r#"
[dns]
split = { "corp.test" = ["192.168.77.2"] }
extra_records = [
    { name = "wiki.rig.test", type = "A", value = "100.64.0.200" },
    { name = "printer.else.test", value = "192.168.77.9" },
]
"#;

struct World {
    tailnet: Tailnet,
    client: Member,
    router: Member,
    _behind: Host,
}

/// A router that the policy approves, with a name server behind it, and a client.
fn world() -> Option<World> {
    let mut tailnet = start()?;
    tailnet.coordinator.configure(DNS);
    let approvers = json!({ "routes": { NETWORK: ["rig@"] }, "exitNode": ["rig@"] });
    set(&tailnet, &json!({ "autoApprovers": approvers }));
    let host = tailnet.host("router", Uplink::Switch);
    let behind = Lan::behind(&host);
    forward(&host);
    serve_names(&behind, &[BEHIND], "--host-record=db.corp.test,192.168.77.7");
    let offers = format!("--advertise-routes={NETWORK} --advertise-exit-node");
    let router = Member::join(&tailnet, host, MemberKind::Tailscaled, &offers);
    let client = join(&tailnet, "client", MemberKind::Tailscaled, "--accept-routes");
    client.wait_until_direct(&router);
    Some(World { tailnet, client, router, _behind: behind })
}

impl World {
    fn reaches(&self, target: &str) -> bool {
        ping(&self.client.host, format!("-c 1 -W 1 {target}")).is_complete()
    }

    fn resolves(&self, name: &str, to: &str) {
        eventually(&format!("{name} is {to}"), PATIENCE, || {
            self.client.host.attempt(format!("getent ahostsv4 {name}")).stdout.contains(to)
        });
    }

    /// The output of a client's command, which must succeed.
    fn run_on_client(&self, command: &str) -> String {
        let output = self.client.tailscale(command);
        assert!(output.ok, "{command}: {output:?}");
        output.stdout
    }
}

fn state(member: &Member) -> Value {
    member.status()["BackendState"].clone()
}

#[test]
fn names_networks_and_exits_work_and_a_client_reconnects() {
    let Some(world) = world() else { return };
    let World { client, router, .. } = &world;
    let pong = world.run_on_client("ping router");
    assert!(pong.contains("pong from router"), "{pong}");

    world.resolves("router", router.addresses.of(Family::V4));
    world.resolves("router.rig.test", router.addresses.of(Family::V4));
    world.resolves("wiki.rig.test", "100.64.0.200");
    world.resolves("printer.else.test", "192.168.77.9");
    world.resolves("db.corp.test", "192.168.77.7");

    assert!(world.reaches(BEHIND) && !world.reaches(WORLD));
    world.run_on_client("set --exit-node=router");
    eventually("the world is reached by the exit", PATIENCE, || world.reaches(WORLD));
    world.run_on_client("set --exit-node=");
    eventually("the world is gone again", PATIENCE, || !world.reaches(WORLD));

    world.run_on_client("down");
    assert_eq!(state(client), "Stopped");
    assert!(!world.reaches(BEHIND));
    world.run_on_client("up");
    eventually("it is back", PATIENCE, || world.reaches(BEHIND));

    let key = client.status()["Self"]["PublicKey"].clone();
    let coordinator = &world.tailnet.coordinator;
    let again =
        client.log_in(coordinator.url(), coordinator.auth_key(), "--accept-routes --force-reauth");
    assert!(again.ok, "{again:?}");
    let own = client.status()["Self"].clone();
    assert_ne!(own["PublicKey"], key);
    assert_eq!(own["TailscaleIPs"][0], client.addresses.of(Family::V4));
    router.reaches(client, Family::V4);
}

#[test]
fn commands_of_the_stock_client_work() {
    let Some(world) = world() else { return };
    let World { client, router, .. } = &world;
    let at = router.addresses.of(Family::V4);
    let whois = world.run_on_client(&format!("whois {at}"));
    assert!(whois.contains("router.rig.test") && whois.contains("rig"), "{whois}");
    let netcheck = client.tailscale("netcheck");
    assert!(netcheck.ok && netcheck.stdout.contains("Nearest DERP: Rig"), "{netcheck:?}");
    let lock = world.run_on_client("lock status");
    assert!(lock.contains("NOT enabled"), "{lock}");
    let exits = world.run_on_client("exit-node list");
    assert!(exits.contains("router.rig.test"), "{exits}");
    assert!(world.run_on_client("exit-node suggest").contains("No exit node suggestion"));
    let suggested = json!({ "target": ["*"], "attr": ["suggest-exit-node"] });
    let port = || client.host.run("ss -Huln").contains(":51820 ");
    assert!(port(), "the rig set this port");
    set(&world.tailnet, &json!({ "nodeAttrs": [suggested], "randomizeClientPort": true }));
    eventually("an exit is suggested", PATIENCE, || {
        world.run_on_client("exit-node suggest").contains("router.rig.test")
    });
    eventually("its port is another", PATIENCE, || !port());

    client.host.write("note.txt", "a note");
    world.run_on_client("file cp /run/rig/note.txt router:");
    router.host.run("mkdir /run/rig/inbox");
    let got = router.tailscale("file get --wait /run/rig/inbox");
    assert!(got.ok, "{got:?}");
    assert_eq!(router.host.read("/run/rig/inbox/note.txt"), "a note");

    for served in ["--http=80 text:hello", "--tcp=9000 tcp://127.0.0.1:80"] {
        let served = router.tailscale(&format!("serve --bg {served}"));
        assert!(served.ok, "{served:?}");
    }
    assert_eq!(client.host.run("curl -s --max-time 5 http://router.rig.test/"), "hello");
}

#[test]
fn folders_are_shared_if_the_policy_allows_it() {
    let Some(World { client, router, tailnet, _behind }) = world() else { return };
    let shares = json!({ "target": ["*"], "attr": ["drive:share", "drive:access"] });
    let all = json!([{ "shares": ["*"], "access": "rw" }]);
    let grants = json!([
        { "src": ["*"], "dst": ["*"], "ip": ["*"] },
        { "src": ["rig@"], "dst": ["rig@"], "app": { "tailscale.com/cap/drive": all } },
    ]);
    set(&tailnet, &json!({ "nodeAttrs": [shares], "grants": grants }));
    router.host.run("mkdir /run/rig/docs && echo shared >/run/rig/docs/a.txt");
    let share = "drive share docs /run/rig/docs";
    eventually("a folder is shared", PATIENCE, || router.tailscale(share).ok);
    let fetch = "curl -s --max-time 5 http://100.100.100.100:8080/rig.test/router/docs/a.txt";
    eventually("it is read by another node", PATIENCE, || {
        client.host.attempt(fetch).stdout == "shared\n"
    });
}

#[test]
fn unsupported_features_are_refused_promptly_with_a_message() {
    let Some(world) = world() else { return };
    let World { client, tailnet, .. } = &world;
    for (command, words) in [
        ("cert client.rig.test", "does not support getting TLS certs"),
        ("serve --bg 3000", "does not support certificates for HTTPS"),
        ("funnel --bg 3000", "does not support Funnel"),
        ("drive share x /run/rig", "not enabled"),
    ] {
        let output = client.tailscale(command);
        let all = format!("{}{}", output.stdout, output.stderr);
        assert!(all.contains(words), "{command}: {output:?}");
    }
    let health = |id| tailnet.coordinator.attempt(&format!("nodes health -i {id}"));
    let id = number(tailnet, "client");
    let well = health(id);
    assert!(well.ok && well.stdout.contains("Severity"), "{well:?}");
    let none = health(4711);
    assert!(!none.ok && none.stderr.contains("node not found"), "{none:?}");
}
