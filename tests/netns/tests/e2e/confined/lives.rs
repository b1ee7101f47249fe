//! The kinds of processes, each started as users start it, with its companions.

use std::fs;
use std::process::{Child, Stdio};
use std::time::Duration;

use netns::{
    AS_NOBODY, CoordinatorKind, Host, INTERFACE, Implementation, Injected, Key, eventually,
};

pub(super) const PATIENCE: Duration = Duration::from_secs(15);

/// A confined process has both of its filters.
const FILTERS: &str = "2";

/// A secret in the caller's environment.
const CALLERS_VARIABLE: &str = "SECRET_OF_THE_CALLER";

/// One host with a running process.
pub(super) struct Life {
    pub host: Host,
    process: Child,
}

/// A process, by its pid as seen by this process.
pub(super) struct Confined(u32);

impl Life {
    /// `linerate [OPTION...] wg0`.
    pub(super) fn interface(arguments: &str) -> Self {
        let life = Self::start(Host::new("alone"), "", &format!("-f {arguments}"));
        life.answers()
    }

    /// `linerate wg0` as the user nobody.
    pub(super) fn as_unprivileged_user() -> Self {
        let host = Host::new("alone");
        host.run("install -d -o nobody /run/wireguard");
        host.open_tun();
        let life = Self::start(host, AS_NOBODY, &format!("-f {INTERFACE}"));
        life.answers()
    }

    /// `linerate up FILE`, which needs a guardian, a rule and a route in the main table.
    pub(super) fn up() -> Self {
        let host = Host::new("alone");
        let peer = Key::generate();
        let conf = format!(
            "[Interface]\nPrivateKey = {}\nAddress = 10.9.0.1/24\nPostDown = true\n[Peer]\n\
             PublicKey = {}\nAllowedIPs = 10.9.0.2/32, 10.20.0.0/16, 0.0.0.0/0\n",
            Key::generate().private,
            peer.public
        );
        let conf = host.write_secret("wg0.conf", &conf);
        let life = Self::start(host, "", &format!("up -f {conf}"));
        life.answers()
    }

    /// `linerate join` with a coordinator that does not answer.
    pub(super) fn member() -> Self {
        let host = Host::new("alone");
        let state = "/run/rig/state";
        let arguments = format!("join -f --state-dir {state} http://10.99.0.1 {INTERFACE}");
        let life = Self::start(host, "", &arguments);
        eventually("there is an agent", PATIENCE, || {
            life.host.attempt("pgrep -f ^linerate-agent").ok
        });
        // Before its first attempt it reads the certificates of the system.
        eventually("it has tried to connect", PATIENCE, || life.log().contains("not connected"));
        life
    }

    /// `linerate proxy` with both kinds of services.
    pub(super) fn proxy(stack: &str, lines: &str) -> Self {
        let host = Host::new("alone");
        let conf = format!(
            "[Interface]\nPrivateKey = {}\nAddress = 10.9.0.1/24\nMTU = 1420\n{lines}\
             Socks5 = 127.0.0.1:1080\nExpose = tcp 10.9.0.1:80 -> 127.0.0.1:8003\n",
            Key::generate().private
        );
        let conf = host.write("wg0.conf", &conf);
        let life = Self::start(host, "", &format!("proxy --stack {stack} {conf}"));
        eventually("the proxy listens", PATIENCE, || life.host.listens(1080));
        life
    }

    /// `linerate-server serve` with further configuration lines.
    pub(super) fn server(lines: &str) -> Self {
        let host = Host::new("alone");
        let configuration = format!(
            "server_url = \"http://127.0.0.1:8080\"\nlisten_plain = [\"127.0.0.1:8080\"]\n\
             state_dir = \"/run/rig/state\"\nsocket = \"/run/rig/state/socket\"\n{lines}"
        );
        let configuration = host.write("server.toml", &configuration);
        let program = CoordinatorKind::Linerate.program().expect("make server");
        let life =
            Self::run(host, &format!("{} serve --config {configuration}", program.display()));
        eventually("the server listens", PATIENCE, || life.host.listens(8080));
        life
    }

    fn answers(self) -> Self {
        eventually("it answers wg(8)", PATIENCE, || self.host.attempt("wg show wg0").ok);
        self
    }

    /// Starts linerate behind the command line of another program, or none.
    fn start(host: Host, behind: &str, arguments: &str) -> Self {
        let program = Implementation::Linerate.path();
        Self::run(host, &format!("{behind} {} {arguments}", program.display()))
    }

    fn run(host: Host, command: &str) -> Self {
        // The caller has an open file that only root may read, and secrets in its environment.
        host.write_secret("callers", "secret");
        let line = format!(
            "exec 9</run/rig/callers; export {CALLERS_VARIABLE}=secret LINERATE_AUTH_KEY=secret; \
             export PGSSLMODE=prefer; echo $$ >/run/rig/pid; exec {command}"
        );
        let log = fs::File::create(host.outside("/run/rig/log")).expect("/run/rig is writable");
        let mut command = host.command("bash");
        command.args(["-c", &line]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let process = command.spawn();
        let process = process.expect("nsenter is installed (make deps)");
        Self { host, process }
    }

    /// The started process, once all of its threads are confined.
    pub(super) fn peer(&self) -> Confined {
        self.found("cat /run/rig/pid")
    }

    /// Its child in the private namespace.
    pub(super) fn child(&self) -> Confined {
        self.found("pgrep -x linerate -P $(cat /run/rig/pid)")
    }

    /// The helper process with its rights.
    pub(super) fn helper(&self) -> Confined {
        self.found("pgrep -x linerate-helper")
    }

    /// The process that handles a network's messages.
    pub(super) fn agent(&self) -> Confined {
        self.found("pgrep -f ^linerate-agent")
    }

    /// Checks a member's privileged process, which is not confined.
    pub(super) fn steward(&self) {
        let pid = self.host.run("pgrep -f ^linerate-steward");
        self.unconfined(pid.trim().parse().expect("it runs")).has_nothing_of_the_caller();
    }

    /// A process that may run without a sandbox.
    pub(super) fn unconfined(&self, inner: u32) -> Confined {
        Confined(self.host.outer_pid(inner).expect("its namespace is below ours"))
    }

    fn found(&self, line: &str) -> Confined {
        let confined = self.unconfined(self.host.run(line).trim().parse().expect("it runs"));
        eventually("it is confined", PATIENCE, || confined.status("Seccomp_filters") == FILTERS);
        // The thread and descriptor of an earlier request may remain for a moment.
        let serves = || confined.status("Name").contains("uapi client");
        eventually("no request is being served", PATIENCE, || !serves());
        confined.has_nothing_of_the_caller();
        confined
    }

    /// Its log.
    pub(super) fn log(&self) -> String {
        self.host.read("/run/rig/log")
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- its log ---\n{}", self.log());
        }
        self.host.attempt(format!("kill -KILL $(cat /run/rig/pid); ip link delete {INTERFACE}"));
        // It has been killed; the host's end would end it as well.
        let _ = self.process.wait();
    }
}

impl Confined {
    /// A field of its status, or the values of all threads if they differ.
    pub(super) fn status(&self, field: &str) -> String {
        let threads = fs::read_dir(format!("/proc/{}/task", self.0)).into_iter().flatten();
        let mut values: Vec<String> = threads
            .flatten()
            .filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok())
            .filter_map(|status| {
                let line = status.lines().find_map(|line| line.strip_prefix(field));
                Some(line?.trim_start_matches(':').trim().to_owned())
            })
            .collect();
        values.sort();
        values.dedup();
        values.join(" and ")
    }

    /// Its open descriptors: number and target.
    pub(super) fn descriptors(&self) -> Vec<(u64, String)> {
        let files = fs::read_dir(format!("/proc/{}/fd", self.0)).expect("root may look");
        let files = files.flatten().filter_map(|file| {
            let number = file.file_name().to_str()?.parse().ok()?;
            let target = fs::read_link(file.path()).ok()?;
            Some((number, target.to_str()?.to_owned()))
        });
        files.collect()
    }

    /// Checks that it has neither the caller's open file nor a secret of the caller's environment.
    fn has_nothing_of_the_caller(&self) {
        let environment = self.environment();
        assert!(environment.contains("PATH="), "{environment:?}");
        assert!(!environment.contains("secret"), "{environment:?}");
        let open = self.descriptors();
        assert!(open.iter().all(|(_, target)| !target.ends_with("/callers")), "{open:?}");
    }

    /// Its environment, with a zero after each variable.
    pub(super) fn environment(&self) -> String {
        let environment = fs::read(format!("/proc/{}/environ", self.0)).expect("root may look");
        String::from_utf8_lossy(&environment).into_owned()
    }

    /// Injects calls into its main thread.
    pub(super) fn inject(&self) -> Injected {
        Injected::attach(self.0)
    }
}
