//! Notifications to the service manager, if it started this process (sd_notify(3)). Each message
//! is one datagram.

use std::{
    env,
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::Duration,
};

/// A connection to the service manager.
#[derive(Debug)]
pub struct Service {
    socket: UnixDatagram,
    watchdog: Option<Duration>,
}

impl Service {
    /// Connects to the socket in `NOTIFY_SOCKET`, if it is set.
    ///
    /// # Errors
    /// No process listens there.
    pub fn from_environment() -> io::Result<Option<Self>> {
        let Some(address) = env::var_os("NOTIFY_SOCKET") else { return Ok(None) };
        let watchdog = watchdog(
            env::var("WATCHDOG_USEC").ok().as_deref(),
            env::var("WATCHDOG_PID").ok().as_deref(),
            std::process::id(),
        );
        Self::connect(&address, watchdog).map(Some)
    }

    fn connect(address: &OsStr, watchdog: Option<Duration>) -> io::Result<Self> {
        let address = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        // A manager that does not read must not block the main thread.
        socket.set_nonblocking(true)?;
        Ok(Self { socket, watchdog })
    }

    /// The interval in which the manager expects [`Service::alive`]; `None` if it does not.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    pub fn ready(&self) {
        self.notify("READY=1");
    }

    pub fn stopping(&self) {
        self.notify("STOPPING=1");
    }

    pub fn alive(&self) {
        self.notify("WATCHDOG=1");
    }

    fn notify(&self, message: &str) {
        // This fails if the manager has exited, which does not matter.
        let _ = self.socket.send(message.as_bytes());
    }
}

/// The limit, given in microseconds; `None` if it applies to another process
/// (sd_watchdog_enabled(3)).
fn watchdog(limit: Option<&str>, pid: Option<&str>, own_pid: u32) -> Option<Duration> {
    if pid.is_some_and(|pid| pid.parse() != Ok(own_pid)) {
        return None;
    }
    let limit = limit?.parse().ok().filter(|&limit| limit > 0)?;
    Some(Duration::from_micros(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_is_one_datagram_to_a_path_or_an_abstract_name() {
        let folder = env::temp_dir().join(format!("linerate-notify-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("socket");
        let name = format!("linerate-notify-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        for (manager, place) in [
            (UnixDatagram::bind(&path).unwrap(), path.clone().into_os_string()),
            (UnixDatagram::bind_addr(&abstract_name).unwrap(), format!("@{name}").into()),
        ] {
            let service = Service::connect(&place, None).unwrap();
            service.ready();
            service.alive();
            service.stopping();
            for message in ["READY=1", "WATCHDOG=1", "STOPPING=1"] {
                let mut received = [0; 64];
                let len = manager.recv(&mut received).unwrap();
                assert_eq!(&received[..len], message.as_bytes(), "{place:?}");
            }
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn missing_manager_is_an_error_only_at_the_start() {
        assert!(Service::connect(OsStr::new("/nowhere/at/all"), None).is_err());
        let name = format!("linerate-gone-{}", std::process::id());
        let manager = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&manager).unwrap();
        let service = Service::connect(OsStr::new(&format!("@{name}")), None).unwrap();
        drop(manager);
        service.stopping();
    }

    #[test]
    fn watchdog_needs_a_limit_and_applies_to_one_process() {
        let three = Some(Duration::from_secs(3));
        for (limit, pid, expected) in [
            (Some("3000000"), None, three),
            (Some("3000000"), Some("7"), three),
            (Some("3000000"), Some("8"), None),
            (Some("3000000"), Some("x"), None),
            (Some("0"), None, None),
            (Some("soon"), None, None),
            (None, Some("7"), None),
        ] {
            assert_eq!(watchdog(limit, pid, 7), expected, "{limit:?} {pid:?}");
        }
    }
}
