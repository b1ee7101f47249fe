//! A `linerate-server` process.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::Duration,
};

use tailnet::keys::{MachineKey, MachinePublic};

use crate::loopback::free;

const PROGRAM: &str = env!("CARGO_BIN_EXE_linerate-server");

pub(super) struct Server {
    pub at: SocketAddr,
    folder: PathBuf,
    process: Child,
}

impl Server {
    /// Starts a server with this database. All servers use the key of the first one.
    pub(super) fn start(folder: &Path, name: &str, database: &str, pooled: bool) -> Self {
        let first = folder.join("a/state/noise.key");
        let (at, folder) = configure(&folder.join(name), Some(database), pooled);
        if name != "a" {
            fs::copy(first, folder.join("state/noise.key")).unwrap();
        }
        Self::begin(at, folder)
    }

    /// The same with a second network, `lab`, in the same database. All servers use the keys of
    /// the first one.
    pub(super) fn with_lab(folder: &Path, name: &str, database: &str) -> Self {
        let key = |of: &str| folder.join(of).join("state/networks/lab/noise.key");
        let (at, own) = configure(&folder.join(name), Some(database), false);
        let file = own.join("server.toml");
        let text = fs::read_to_string(&file).unwrap();
        let lab = "[networks.lab]\nserver_url = \"http://lab.test\"\ndatabase_network = 2\n\
                   [networks.lab.derp]\nenabled = false\n";
        fs::write(file, text + lab).unwrap();
        if name != "a" {
            fs::copy(folder.join("a/state/noise.key"), own.join("state/noise.key")).unwrap();
            fs::create_dir_all(key(name).parent().unwrap()).unwrap();
            fs::copy(key("a"), key(name)).unwrap();
        }
        Self::begin(at, own)
    }

    /// Starts a server with its network in a file.
    pub(super) fn alone(folder: &Path, name: &str) -> Self {
        let (at, folder) = configure(&folder.join(name), None, false);
        Self::begin(at, folder)
    }

    /// Starts a server after an import of this file.
    pub(super) fn restored(folder: &Path, name: &str, database: Option<&str>, from: &Path) -> Self {
        let (at, folder) = configure(&folder.join(name), database, false);
        let mut import = Command::new(PROGRAM);
        import.arg("--config").arg(folder.join("server.toml")).arg("import").arg(from);
        let output = import.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self::begin(at, folder)
    }

    fn begin(at: SocketAddr, folder: PathBuf) -> Self {
        let log = fs::File::create(folder.join("log")).unwrap();
        let process = Command::new(PROGRAM)
            .arg("--config")
            .arg(folder.join("server.toml"))
            .args(["serve", "--debug"])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let server = Self { at, folder, process };
        for _ in 0..200 {
            if TcpStream::connect(at).is_ok() && server.folder.join("socket").exists() {
                return server;
            }
            thread::sleep(Duration::from_millis(50));
        }
        panic!("{} does not begin:\n{}", server.folder.display(), server.log());
    }

    pub(super) fn key(&self) -> MachinePublic {
        let text = fs::read_to_string(self.folder.join("state/noise.key")).unwrap();
        let key: MachineKey = text.trim().parse().unwrap();
        key.public()
    }

    /// Runs a command and returns its output.
    pub(super) fn run(&self, arguments: &[&str]) -> String {
        let output = self.try_run(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}\n{}", self.log());
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    pub(super) fn try_run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(PROGRAM);
        command.arg("--config").arg(self.folder.join("server.toml"));
        command.args(["--output", "json"]).args(arguments).output().unwrap()
    }

    /// Kills the process, as in a power failure.
    pub(super) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Stops the process, as a service manager does.
    pub(super) fn stop(&mut self) {
        let stopped = Command::new("kill").arg(self.process.id().to_string()).status().unwrap();
        assert!(stopped.success() && self.process.wait().unwrap().success(), "{}", self.log());
    }

    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Writes the configuration of a server with a separate folder.
fn configure(folder: &Path, database: Option<&str>, pooled: bool) -> (SocketAddr, PathBuf) {
    fs::create_dir_all(folder.join("state")).unwrap();
    let at = free();
    let mut text = format!(
        "server_url = \"http://{at}\"\nlisten_plain = [\"{at}\"]\n\
         state_dir = \"{0}/state\"\nsocket = \"{0}/socket\"\n",
        folder.display()
    );
    if let Some(database) = database {
        fs::write(folder.join("url"), database).unwrap();
        text += &format!(
            "database_url_path = \"{}/url\"\ndatabase_pooled = {pooled}\n",
            folder.display()
        );
    }
    text += "[derp]\nenabled = false\n";
    fs::write(folder.join("server.toml"), text).unwrap();
    (at, folder.to_owned())
}
