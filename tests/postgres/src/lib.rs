//! A private PostgreSQL of a test: the distribution's program, in a temporary folder, at a Unix
//! socket, as a user other than root, which PostgreSQL refuses.

#![forbid(unsafe_code)]

use std::{
    fs,
    os::unix::fs::{MetadataExt, chown},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use tempfile::TempDir;

/// Debian's packages install it outside of PATH.
const INSTALLED: &str = "/usr/lib/postgresql";
/// The user of Debian's package.
const USER: &str = "postgres";
/// Limit of checks until a program has started.
const LOOKS: u32 = 600;
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// PostgreSQL, until it is dropped.
pub struct Cluster {
    folder: TempDir,
    programs: PathBuf,
    server: Option<Child>,
}

impl Cluster {
    /// A new cluster. `None` if it is not installed; then the test is skipped.
    pub fn start() -> Option<Self> {
        let Some(programs) = programs() else {
            skips::skip("postgresql");
            return None;
        };
        let folder = tempfile::Builder::new().prefix("pg").tempdir().expect("a folder");
        if is_root() {
            let (user, group) = numbers();
            chown(folder.path(), Some(user), Some(group)).expect("a folder of its user's");
        }
        let mut cluster = Self { folder, programs, server: None };
        let mut made = cluster.program("initdb");
        made.args(["--no-sync", "-A", "trust", "-U", USER, "-E", "UTF8", "--locale=C", "-D"]);
        run(made.arg(cluster.data()));
        cluster.begin();
        Some(cluster)
    }

    /// Starts it again.
    pub fn begin(&mut self) {
        let mut server = self.program("postgres");
        server.arg("-D").arg(self.data()).arg("-k").arg(self.folder());
        server.args(["-c", "listen_addresses=", "-c", "max_connections=60"]);
        let log = fs::File::create(self.folder().join("log")).expect("a log");
        let log_too = log.try_clone().expect("a log");
        self.server = Some(server.stdout(log).stderr(log_too).spawn().expect("postgres runs"));
        let answers = || {
            let mut command = self.program("pg_isready");
            command.arg("-h").arg(self.folder()).stdout(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        wait(answers, || fs::read_to_string(self.folder().join("log")).unwrap_or_default());
    }

    /// Kills it, as a loss of power does.
    pub fn end(&mut self) {
        if let Some(mut server) = self.server.take() {
            let mut ended = self.program("pg_ctl");
            ended.args(["stop", "-w", "-m", "immediate", "-D"]).arg(self.data());
            let _ = ended.stdout(Stdio::null()).stderr(Stdio::null()).status();
            let _ = server.wait();
        }
    }

    /// Creates a database and returns its URL.
    pub fn database(&self, name: &str) -> String {
        self.run(&format!("CREATE DATABASE {name}"));
        self.url(name)
    }

    /// The URL of a database.
    pub fn url(&self, name: &str) -> String {
        format!("postgres://{USER}@localhost/{name}?host={}", self.folder().display())
    }

    /// Runs a statement and returns the output.
    pub fn run(&self, statement: &str) -> String {
        self.run_in("postgres", statement)
    }

    /// Runs a statement in a database.
    pub fn run_in(&self, database: &str, statement: &str) -> String {
        let mut command = self.program("psql");
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", USER, "-h"]);
        command.arg(self.folder()).args(["-d", database, "-c", statement]);
        run(&mut command)
    }

    /// Writes a backup of a database to a file.
    pub fn dump(&self, database: &str, file: &Path) {
        let mut command = self.program("pg_dump");
        let text = run(command.args(["-U", USER, "-h"]).arg(self.folder()).arg(database));
        fs::write(file, text).expect("a file");
    }

    /// Restores a backup into an empty database.
    pub fn restore(&self, database: &str, file: &Path) {
        let mut command = self.program("psql");
        command.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-U", USER, "-h"]).arg(self.folder());
        let file = fs::File::open(file).expect("a file");
        run(command.args(["-d", database]).stdin(file));
    }

    /// The folder of its socket and of a test's files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn data(&self) -> PathBuf {
        self.folder().join("data")
    }

    fn program(&self, name: &str) -> Command {
        as_user(&self.programs.join(name), self.folder())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.end();
    }
}

/// PgBouncer in front of a cluster, which uses any connection for each transaction. It ends when
/// this is dropped.
pub struct Bouncer {
    process: Child,
    folder: PathBuf,
}

impl Bouncer {
    const PORT: u16 = 6432;

    /// Starts it. `None` if it is not installed; then the test is skipped.
    pub fn start(cluster: &Cluster) -> Option<Self> {
        let Some(program) = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"]
            .iter()
            .map(Path::new)
            .find(|path| path.exists())
        else {
            skips::skip("pgbouncer");
            return None;
        };
        let folder = cluster.folder().to_owned();
        let (at, port) = (folder.display(), Self::PORT);
        let users = folder.join("users");
        fs::write(&users, format!("\"{USER}\" \"\"\n")).expect("a file");
        let file = folder.join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host={at}\n[pgbouncer]\nlisten_addr =\nlisten_port = {port}\n\
             unix_socket_dir = {at}\nauth_type = trust\nauth_file = {at}/users\n\
             pool_mode = transaction\ndefault_pool_size = 4\nlogfile = {at}/pgbouncer.log\n"
        );
        fs::write(&file, text).expect("a file");
        let mut command = as_user(program, &folder);
        let log = fs::File::create(folder.join("bouncer")).expect("a log");
        let process = command.arg(&file).stdout(Stdio::null()).stderr(log).spawn();
        let bouncer = Self { process: process.expect("pgbouncer runs"), folder: folder.clone() };
        let socket = folder.join(format!(".s.PGSQL.{port}"));
        wait(|| socket.exists(), || fs::read_to_string(folder.join("bouncer")).unwrap_or_default());
        Some(bouncer)
    }

    /// The URL of a database behind it.
    pub fn url(&self, name: &str) -> String {
        let (port, at) = (Self::PORT, self.folder.display());
        format!("postgres://{USER}@localhost:{port}/{name}?host={at}")
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The folder of the newest installed version.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir(INSTALLED).ok()?.flatten().map(|entry| entry.path());
    let version = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.filter(|path| path.join("bin/initdb").exists()).max_by_key(version);
    newest.map(|path| path.join("bin"))
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// The ids of the user and its group.
fn numbers() -> (u32, u32) {
    let all = fs::read_to_string("/etc/passwd").expect("users");
    let own = all.lines().find(|line| line.starts_with(&format!("{USER}:")));
    let mut fields = own.expect("a user postgres").split(':').skip(2);
    let mut number = || fields.next().and_then(|field| field.parse().ok()).expect("a number");
    (number(), number())
}

fn as_user(program: &Path, folder: &Path) -> Command {
    let mut command = if is_root() {
        let mut command = Command::new("setpriv");
        let (user, group) = numbers();
        command.arg(format!("--reuid={user}")).arg(format!("--regid={group}"));
        command.args(["--clear-groups", "--pdeathsig=KILL", "--"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.current_dir(folder).stdin(Stdio::null());
    command
}

fn run(command: &mut Command) -> String {
    let output = command.output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    text(&output.stdout).trim().to_owned()
}

fn wait(is_done: impl Fn() -> bool, log: impl Fn() -> String) {
    for _ in 0..LOOKS {
        if is_done() {
            return;
        }
        thread::sleep(LOOK_AGAIN);
    }
    panic!("it does not start:\n{}", log());
}
