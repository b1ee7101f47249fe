//! Links, addresses, routes and rules, over rtnetlink (rtnetlink(7)).
//!
//! A call is one request and waits for its answer. `rtnetlink` speaks
//! asynchronously; a runtime of the calling thread's own drives it, so that no
//! thread is started and a call may stand where no runtime is. The socket stays
//! in the network namespace of the thread that opened it.

mod device;
mod follow;
mod link;
mod monitor;
mod route;
mod rule;

use std::io;

use futures_util::StreamExt as _;
use rtnetlink::{
    Handle,
    packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload},
    packet_route::RouteNetlinkMessage,
};
use tokio::runtime::{Builder, Runtime};

pub use device::Device;
pub use follow::{Follow, Followed};
pub use link::Link;
pub use monitor::{Event, Monitor};
pub use route::Route;
pub use rule::{Family, FwMark, Rule};

/// The routing table that is asked when no rule says otherwise (`RT_TABLE_MAIN`).
pub const MAIN_TABLE: u32 = libc::RT_TABLE_MAIN as u32;

/// Why a request over netlink failed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// No socket could be opened.
    #[error("no netlink socket: {0}")]
    Open(#[source] io::Error),
    /// The kernel said no, with this errno.
    #[error(transparent)]
    Refused(io::Error),
    /// The conversation with the kernel broke off.
    #[error("the netlink socket is closed")]
    Closed,
}

impl NetlinkError {
    /// The errno of the kernel's answer.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Open(error) | Self::Refused(error) => error.raw_os_error(),
            Self::Closed => None,
        }
    }
}

impl From<NetlinkError> for io::Error {
    fn from(error: NetlinkError) -> Self {
        match error {
            NetlinkError::Open(error) | NetlinkError::Refused(error) => error,
            NetlinkError::Closed => io::ErrorKind::BrokenPipe.into(),
        }
    }
}

/// A conversation with the kernel about its network configuration.
///
/// Its calls must not be made from within a tokio runtime.
#[derive(Debug)]
pub struct Netlink {
    runtime: Runtime,
    handle: Handle,
}

impl Netlink {
    /// Opens a socket in the thread's network namespace.
    ///
    /// # Errors
    /// [`NetlinkError::Open`].
    pub fn open() -> Result<Self, NetlinkError> {
        let runtime =
            Builder::new_current_thread().enable_io().build().map_err(NetlinkError::Open)?;
        let guard = runtime.enter();
        let (connection, handle, _) = rtnetlink::new_connection().map_err(NetlinkError::Open)?;
        drop(guard);
        runtime.spawn(connection);
        Ok(Self { runtime, handle })
    }

    /// Asks for a change.
    fn change(&self, message: RouteNetlinkMessage, flags: u16) -> Result<(), NetlinkError> {
        self.request(message, NLM_F_ACK | flags, |_| {})
    }

    /// Asks for everything of a kind.
    fn dump(
        &self,
        message: RouteNetlinkMessage,
        each: impl FnMut(RouteNetlinkMessage),
    ) -> Result<(), NetlinkError> {
        self.request(message, NLM_F_DUMP, each)
    }

    fn request(
        &self,
        message: RouteNetlinkMessage,
        flags: u16,
        mut each: impl FnMut(RouteNetlinkMessage),
    ) -> Result<(), NetlinkError> {
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | flags;
        self.runtime.block_on(async {
            let mut handle = self.handle.clone();
            let mut answers = handle.request(request).map_err(|_| NetlinkError::Closed)?;
            while let Some(answer) = answers.next().await {
                match answer.payload {
                    NetlinkPayload::InnerMessage(message) => each(message),
                    NetlinkPayload::Error(error) if error.code.is_some() => {
                        return Err(NetlinkError::Refused(error.to_io()));
                    }
                    _ => {}
                }
            }
            Ok(())
        })
    }
}

/// Whether an errno says that what was to be removed is not there.
fn is_absent(error: &NetlinkError) -> bool {
    matches!(
        error.errno(),
        Some(libc::ENOENT | libc::ESRCH | libc::ENODEV | libc::EADDRNOTAVAIL | libc::ENXIO)
    )
}

#[cfg(test)]
mod tests;
