//! What the main thread of a process hears.
//!
//! ```text
//!   signals, socket file, link and routes, engine, control socket
//!        `------> Event ------> main thread
//! ```

use std::{
    io, iter,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use sys::{
    netlink::{self, Follow, Followed, Monitor},
    process::{self, Signals},
    watch::{Watch, Watched},
};

/// Without an event for so long, the work of the last ones is over.
const QUIET: Duration = Duration::from_secs(1);

/// One of them.
pub(crate) enum Event {
    /// Of the links, addresses, routes and rules of this machine.
    Link(netlink::Event),
    /// What became of the interface itself.
    Own(Followed),
    /// The process is to end.
    End(&'static str),
    /// A side of the data plane is gone.
    Gone(io::Error),
}

/// What events are heard from.
pub(crate) struct Listeners {
    pub signals: Signals,
    pub monitor: Monitor,
    /// The file of the control socket, where there is one.
    pub socket: Option<Watch>,
    /// The interface, where there is one.
    pub follow: Option<Follow>,
}

impl Listeners {
    /// Opens what an interface and a proxy have in common.
    ///
    /// # Errors
    /// The system gives no socket.
    pub fn open(signals: Signals, socket: Option<Watch>) -> anyhow::Result<Self> {
        use anyhow::Context;
        let monitor = Monitor::open().context("netlink")?;
        Ok(Self { signals, monitor, socket, follow: None })
    }

    /// Starts a thread for each.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub fn spawn(self, events: mpsc::Sender<Event>) -> io::Result<()> {
        let Self { signals, mut monitor, socket, follow } = self;
        let thread = |name: &str| thread::Builder::new().name(name.into());
        if let Some(mut follow) = follow {
            let events = events.clone();
            thread("interface").spawn(move || {
                while let Ok(event) = follow.next() {
                    let _ = events.send(Event::Own(event));
                }
            })?;
        }
        let sender = events.clone();
        thread("signals").spawn(move || {
            while signals.wait().is_ok() {
                let _ = sender.send(Event::End("signal"));
            }
        })?;
        if let Some(mut watch) = socket {
            let sender = events.clone();
            thread("socket watch").spawn(move || {
                if matches!(watch.wait(), Ok(Watched::Gone)) {
                    let _ = sender.send(Event::End("the socket's file was removed"));
                }
            })?;
        }
        thread("netlink").spawn(move || {
            while let Ok(Some(event)) = monitor.next() {
                let _ = events.send(Event::Link(event));
            }
        })?;
        Ok(())
    }
}

/// The events, one after the other. Code that was used to answer them, or to configure a
/// peer that has just started, is released when no more came for a while.
pub(crate) fn events(inbox: &mpsc::Receiver<Event>) -> impl Iterator<Item = Event> {
    iter::from_fn(move || match inbox.recv_timeout(QUIET) {
        Err(RecvTimeoutError::Timeout) => {
            release_code();
            inbox.recv().ok()
        }
        received => received.ok(),
    })
}

pub(crate) fn release_code() {
    if let Err(error) = process::release_code() {
        tracing::debug!(%error, "code that is not used stays resident");
    }
}
