//! A daemon as a service of the system: what its manager hears.
//!
//! ```text
//!   alone:  linerate up -f wg0.conf  -- READY, WATCHDOG, ... , STOPPING -->  NOTIFY_SOCKET
//!           wg0 10.9.0.1/24
//! ```

#![forbid(unsafe_code)]

use std::os::unix::net::UnixDatagram;
use std::process::{Child, Stdio};
use std::time::Duration;

use netns::{Host, Implementation, Key, eventually};

const PATIENCE: Duration = Duration::from_secs(10);

/// A manager, and a daemon that was started by it.
struct Managed {
    host: Host,
    manager: UnixDatagram,
    daemon: Child,
}

impl Managed {
    /// Starts `linerate up -f` of an interface with an address, with a watchdog of so many
    /// milliseconds.
    fn start(watchdog: u64) -> Self {
        let host = Host::new("alone");
        let manager = UnixDatagram::bind(host.outside("/run/rig/notify"));
        let manager = manager.expect("a host has room for a socket");
        manager.set_read_timeout(Some(PATIENCE)).expect("a time-out can be set");
        let private = Key::generate().private;
        let conf = format!("[Interface]\nPrivateKey = {private}\nAddress = 10.9.0.1/24\n");
        let conf = host.write("wg0.conf", &conf);
        host.run(format!("chmod 600 {conf}"));
        let daemon = host
            .command(Implementation::Linerate.path())
            .args(["up", "-f", &conf])
            .env("NOTIFY_SOCKET", "/run/rig/notify")
            .env("WATCHDOG_USEC", (watchdog * 1000).to_string())
            .stdin(Stdio::null())
            .spawn()
            .expect("linerate starts");
        Self { host, manager, daemon }
    }

    fn hears(&self) -> std::io::Result<String> {
        let mut text = [0; 256];
        let len = self.manager.recv(&mut text)?;
        Ok(String::from_utf8_lossy(&text[..len]).into_owned())
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

#[test]
fn the_manager_hears_when_it_is_up_while_it_works_and_when_it_goes_down() {
    let mut managed = Managed::start(300);
    assert_eq!(managed.hears().unwrap(), "READY=1");
    // Ready means usable: nothing is waited for here.
    assert!(managed.host.run("ip -o address show dev wg0").contains("10.9.0.1/24"));
    assert!(managed.host.attempt("wg show wg0").ok);
    for _ in 0..5 {
        assert_eq!(managed.hears().unwrap(), "WATCHDOG=1");
    }
    let pid = managed.host.daemon_of("wg0").unwrap();
    managed.host.run(format!("kill -TERM {pid}"));
    eventually("it says that it stops", PATIENCE, || managed.hears().unwrap() == "STOPPING=1");
    assert!(managed.daemon.wait().unwrap().success());
}
