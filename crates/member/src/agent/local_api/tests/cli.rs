//! The unmodified `tailscale` 1.102.5 with the canned agent. It runs in a separate network
//! namespace, so that `netcheck` reaches no other server.

use std::{
    env, fs,
    os::unix::{fs::MetadataExt as _, net::UnixListener as StdListener},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;

use super::{
    super::{Server, Writers},
    canned::{Canned, GOOD_KEY, PAGE},
};

/// The exit status and output of a command.
#[derive(Debug)]
struct Ended {
    ok: bool,
    out: String,
    err: String,
}

struct Tailscale {
    program: PathBuf,
    folder: PathBuf,
    _server: Server,
}

impl Tailscale {
    /// The command with this agent, unless it is not installed.
    fn new(test: &str, canned: Canned) -> Option<Self> {
        let program = peers().join("bin/tailscale");
        if !program.exists() {
            skips::skip("tailscale");
            return None;
        }
        let name = format!("linerate-local-api-{}-{test}", std::process::id());
        let folder = env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        let listener = StdListener::bind(folder.join("socket")).unwrap();
        let own = fs::metadata(&folder).unwrap().uid();
        let server =
            Server::start(listener, Writers::new(Some(own)).into(), canned.start()).unwrap();
        Some(Self { program, folder, _server: server })
    }

    async fn run(&self, arguments: &str) -> Ended {
        let mut command = Command::new("timeout");
        let namespace = ["-s", "KILL", "30", "unshare", "-rn", "sh", "-c"];
        let line = "ip link set lo up; exec \"$0\" --socket \"$1\" $2";
        command.args(namespace).arg(line).arg(&self.program).arg(self.socket()).arg(arguments);
        command.env("TS_DEBUG_FIREWALL_MODE", "auto").env_remove("USER");
        let Output { status, stdout, stderr } =
            tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ended { ok: status.success(), out: text(stdout), err: text(stderr) }
    }

    async fn good(&self, arguments: &str) -> Ended {
        let ended = self.run(arguments).await;
        assert!(ended.ok, "{arguments}: {ended:?}");
        ended
    }

    async fn bad(&self, arguments: &str, error: &str) {
        let ended = self.run(arguments).await;
        assert!(!ended.ok && ended.err.contains(error), "{arguments}: {ended:?}");
    }

    async fn json(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.good(arguments).await.out).unwrap()
    }

    async fn state(&self) -> Value {
        self.json("status --json").await["BackendState"].take()
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }
}

impl Drop for Tailscale {
    fn drop(&mut self) {
        // A remaining temporary folder is harmless.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The folder of the programs that `make peers` builds.
fn peers() -> PathBuf {
    let cache = || env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || PathBuf::from(env::var_os("HOME").unwrap_or_default()).join(".cache");
    let own = env::var_os("LINERATE_PEERS").map(PathBuf::from);
    own.unwrap_or_else(|| cache().unwrap_or_else(home).join("linerate-peers"))
}

/// The answer of the local API, without Go's types in between.
async fn raw(socket: &Path, name: &str) -> Value {
    crate::client::Client::new(socket.to_owned()).get(name).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn status_and_ip_show_the_nodes() {
    let Some(tailscale) = Tailscale::new("status", Canned::running()) else { return };
    let status = tailscale.good("status").await;
    let lines: Vec<&str> = status.out.lines().collect();
    assert!(lines[0].starts_with("100.64.0.1  own   ann@"), "{status:?}");
    assert!(lines[1].contains("offline"), "{status:?}");
    assert!(
        lines[2].contains("active; offers exit node; direct 192.0.2.2:41641, tx 1000 rx 2000"),
        "{status:?}"
    );
    assert!(status.out.ends_with("#     - a relay does not answer\n"), "{status:?}");
    assert_eq!(status.err, "");
    assert_eq!(tailscale.good("ip").await.out, "100.64.0.1\nfd7a:115c:a1e0::1\n");
    assert_eq!(tailscale.good("ip -4 near").await.out, "100.64.0.2\n");
    tailscale.bad("ip 100.64.0.9", "no peer or service found").await;
}

/// Go parses our JSON into its types and writes it again, without loss or change.
#[tokio::test(flavor = "multi_thread")]
async fn status_survives_a_round_trip_through_go() {
    for (test, canned) in [("go-1", Canned::running()), ("go-2", Canned::new())] {
        let Some(tailscale) = Tailscale::new(test, canned) else { return };
        let theirs = tailscale.json("status --json").await;
        assert_eq!(theirs, raw(&tailscale.socket(), "status").await);
        let theirs = tailscale.json("debug prefs").await;
        let mut ours = raw(&tailscale.socket(), "prefs").await;
        for prefs in [&ours, &theirs] {
            assert!(prefs["Config"].is_null() || prefs["Config"]["NodeID"] == "n1");
        }
        ours["Config"] = theirs["Config"].clone();
        assert_eq!(theirs, ours);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ping_and_whois_find_nodes_by_name_and_address() {
    let Some(tailscale) = Tailscale::new("ping", Canned::running()) else { return };
    let near = tailscale.good("ping -c 1 near").await.out;
    assert_eq!(near, "pong from near (100.64.0.2) via 192.0.2.2:41641 in 5ms\n");
    let far = tailscale.good("ping -c 1 --until-direct=false 100.64.0.3").await.out;
    assert_eq!(far, "pong from far (100.64.0.3) via DERP(lab) in 5ms\n");
    assert!(tailscale.good("ping own").await.out.contains("is local Tailscale IP"));
    let who = tailscale.json("whois --json 100.64.0.2:80").await;
    assert_eq!(who["Node"]["Name"], "near.tail.example.");
    let who = tailscale.good("whois 100.64.0.2").await.out;
    assert!(who.contains("ann@example.com") && who.contains("near.tail.example"), "{who}");
    tailscale.bad("whois 100.64.0.8", "peer not found").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn set_changes_preferences_and_names_unsupported_ones() {
    let Some(tailscale) = Tailscale::new("set", Canned::running()) else { return };
    tailscale.good("set --hostname=new --accept-routes --shields-up").await;
    tailscale.good("set --advertise-routes=10.1.0.0/16 --advertise-exit-node").await;
    tailscale.good("set --exit-node=near --exit-node-allow-lan-access").await;
    tailscale.good("set --operator=ann --snat-subnet-routes=false --accept-dns=false").await;
    let prefs = raw(&tailscale.socket(), "prefs").await;
    assert_eq!(prefs["Hostname"], "new");
    for (name, value) in [
        ("RouteAll", true),
        ("ShieldsUp", true),
        ("ExitNodeAllowLANAccess", true),
        ("NoSNAT", true),
        ("CorpDNS", false),
        ("WantRunning", true),
    ] {
        assert_eq!(prefs[name], value, "{name}");
    }
    assert_eq!(prefs["AdvertiseRoutes"].as_array().unwrap().len(), 3);
    // The agent looks the node up; the command does not.
    assert_eq!(prefs["ExitNodeIP"], "100.64.0.2");
    assert_eq!(prefs["OperatorUser"], "ann");
    tailscale.good("set --exit-node=").await;
    assert_eq!(raw(&tailscale.socket(), "prefs").await["ExitNodeIP"], "");
    tailscale.bad("set --ssh", "not supported by linerate: the SSH server (--ssh)").await;
    tailscale.bad("set --stateful-filtering", "not supported by linerate").await;
    tailscale.bad("set --hostname=taken", "the name is taken").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn down_and_up_retain_the_login() {
    let Some(tailscale) = Tailscale::new("down", Canned::running()) else { return };
    tailscale.good("down").await;
    assert_eq!(tailscale.state().await, "Stopped");
    tailscale.bad("status", "").await;
    // With flags, it would require all settings.
    tailscale.good("up").await;
    assert_eq!(tailscale.state().await, "Running");
    let edit = "up --login-server=https://control.example --hostname=new";
    let warned = tailscale.good(&format!("{edit} --advertise-routes=10.1.0.0/16")).await;
    assert!(warned.out.contains("IPv6 forwarding is off"), "{warned:?}");
    let prefs = raw(&tailscale.socket(), "prefs").await;
    assert_eq!(
        (&prefs["Hostname"], &prefs["AdvertiseRoutes"][0]),
        (&"new".into(), &"10.1.0.0/16".into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn up_logs_in_by_key_or_page_and_logout_logs_out() {
    let Some(tailscale) = Tailscale::new("up", Canned::new()) else { return };
    assert_eq!(tailscale.state().await, "NeedsLogin");
    let up = "up --timeout=10s --login-server=https://control.example";
    tailscale.bad(&format!("{up} --auth-key=tskey-bad"), "the key is not known").await;
    tailscale.good(&format!("{up} --auth-key={GOOD_KEY}")).await;
    assert_eq!(tailscale.state().await, "Running");
    tailscale.good("logout").await;
    assert_eq!(tailscale.state().await, "NeedsLogin");
    let ended = tailscale.good(up).await;
    assert!(ended.err.contains(PAGE) && ended.err.contains("Success."), "{ended:?}");
    assert_eq!(tailscale.state().await, "Running");
}

#[tokio::test(flavor = "multi_thread")]
async fn netcheck_measures_the_relays_of_the_map() {
    let Some(tailscale) = Tailscale::new("netcheck", Canned::running()) else { return };
    let report = tailscale.good("netcheck").await;
    assert!(report.out.contains("- lab:") && report.out.contains("(Lab)"), "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unsupported_commands_have_clear_errors() {
    let Some(tailscale) = Tailscale::new("others", Canned::running()) else { return };
    for (command, error) in [
        ("exit-node suggest", "not implemented by linerate: the choice of an exit node"),
        ("bugreport", "not implemented by linerate: reports to Tailscale"),
        ("cert own.tail.example", "not implemented by linerate: certificates"),
        ("dns query example.com", "not implemented by linerate: tailscale dns"),
        ("metrics print", "not implemented by linerate: metrics"),
    ] {
        let ended = tailscale.run(command).await;
        let output = format!("{}{}", ended.out, ended.err);
        assert!(!ended.ok && output.contains(error), "{command}: {ended:?}");
    }
    assert!(tailscale.good("switch --list").await.out.contains("ann@example.com"));
    assert!(tailscale.good("version --daemon").await.out.contains("linerate"));
}
