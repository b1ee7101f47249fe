//! Notifications to the service manager, if one started this process (sd_notify(3)): one datagram a
//! message.

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
    /// Connects to the manager named by `NOTIFY_SOCKET`, if it is set.
    ///
    /// # Errors
    /// Nobody listens there.
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

    /// The interval within which it expects [`Service::alive`], if it does.
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
        // If the manager is gone, nobody reads it.
        let _ = self.socket.send(message.as_bytes());
    }
}

/// As in sd_watchdog_enabled(3): a limit in microseconds, if it is meant for this process.
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
                let mut heard = [0; 64];
                let len = manager.recv(&mut heard).unwrap();
                assert_eq!(&heard[..len], message.as_bytes(), "{place:?}");
            }
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_manager_that_is_not_there_is_an_error_and_one_that_went_away_is_none() {
        assert!(Service::connect(OsStr::new("/nowhere/at/all"), None).is_err());
        let name = format!("linerate-gone-{}", std::process::id());
        let manager = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&manager).unwrap();
        let service = Service::connect(OsStr::new(&format!("@{name}")), None).unwrap();
        drop(manager);
        service.stopping();
    }

    #[test]
    fn a_watchdog_is_for_one_process_and_has_a_limit() {
        let three = Some(Duration::from_secs(3));
        for (limit, pid, told) in [
            (Some("3000000"), None, three),
            (Some("3000000"), Some("7"), three),
            (Some("3000000"), Some("8"), None),
            (Some("3000000"), Some("x"), None),
            (Some("0"), None, None),
            (Some("soon"), None, None),
            (None, Some("7"), None),
        ] {
            assert_eq!(watchdog(limit, pid, 7), told, "{limit:?} {pid:?}");
        }
    }
}
