//! `linerate-server`, as a process of its own.

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

pub struct Server {
    pub at: SocketAddr,
    folder: PathBuf,
    process: Child,
}

impl Server {
    /// One that has its network at this URL. All have the key of the first.
    pub fn start(folder: &Path, name: &str, database: &str, pooled: bool) -> Self {
        let first = folder.join("a/state/noise.key");
        let (at, folder) = configure(&folder.join(name), Some(database), pooled);
        if name != "a" {
            fs::copy(first, folder.join("state/noise.key")).unwrap();
        }
        Self::begin(at, folder)
    }

    /// The same, with a further network, `lab`, in the same database. All have the keys of the first.
    pub fn with_lab(folder: &Path, name: &str, database: &str) -> Self {
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

    /// One that has its network in a file of its own.
    pub fn alone(folder: &Path, name: &str) -> Self {
        let (at, folder) = configure(&folder.join(name), None, false);
        Self::begin(at, folder)
    }

    /// One that begins with what is imported from this file.
    pub fn restored(folder: &Path, name: &str, database: Option<&str>, from: &Path) -> Self {
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

    pub fn key(&self) -> MachinePublic {
        let text = fs::read_to_string(self.folder.join("state/noise.key")).unwrap();
        let key: MachineKey = text.trim().parse().unwrap();
        key.public()
    }

    /// What a command prints.
    pub fn says(&self, arguments: &[&str]) -> String {
        let output = self.try_says(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}\n{}", self.log());
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    pub fn try_says(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(PROGRAM);
        command.arg("--config").arg(self.folder.join("server.toml"));
        command.args(["--output", "json"]).args(arguments).output().unwrap()
    }

    /// Ends as if its machine had lost power.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Ends as a service manager has it end.
    pub fn stop(&mut self) {
        let stopped = Command::new("kill").arg(self.process.id().to_string()).status().unwrap();
        assert!(stopped.success() && self.process.wait().unwrap().success(), "{}", self.log());
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Writes the configuration of a server with a folder of its own.
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
