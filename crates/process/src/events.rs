//! The events that the main thread of a process handles.
//!
//! ```text
//!   signals, socket file, link and routes, engine, control socket
//!        `------> Event ------> main thread
//! ```

use std::{
    collections::HashSet,
    io,
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, ensure};
use sys::{
    netlink::{self, LinkChange, LinkFollower, Monitor},
    process::{self, Signals},
    watch::{Watch, WatchOutcome},
};

/// After this time without an event, unused memory is released.
const QUIET: Duration = Duration::from_secs(1);

/// The interval at which a waiting start checks the stop flag.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A message to the main thread.
pub(crate) enum Message {
    Event(Event),
    /// Links, addresses, routes or rules of this machine changed.
    Changed(netlink::Event),
    /// A client of the control socket requests the end of the process. Errors are sent to it.
    Down(Arc<UnixStream>),
    /// The process must end even after errors. Contains the reason.
    End(&'static str),
}

pub(crate) enum Event {
    /// The interface itself changed.
    Link(LinkChange),
    /// The data plane ended.
    DataPlaneEnded(io::Error),
}

/// Whether a signal requested the end of the process. A waiting start checks this.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Waits for the time `left`.
    ///
    /// # Errors
    /// A signal was received.
    pub(crate) fn wait(&self, mut left: Duration) -> anyhow::Result<()> {
        while !left.is_zero() {
            ensure!(!self.0.load(Ordering::Relaxed), "a signal was received");
            let pause = left.min(CHECK_INTERVAL);
            thread::sleep(pause);
            left -= pause;
        }
        Ok(())
    }
}

/// The sources of events.
pub(crate) struct EventSources {
    pub stop_flag: StopFlag,
    pub signals: Signals,
    pub monitor: Monitor,
    /// The file of the control socket, if present.
    pub socket: Option<Watch>,
    /// The interface, if present.
    pub follow: Option<LinkFollower>,
}

impl EventSources {
    /// Opens the sources that interface and proxy have in common.
    ///
    /// # Errors
    /// The kernel refuses a socket.
    pub(crate) fn open(signals: Signals, socket: Option<Watch>) -> anyhow::Result<Self> {
        let monitor = Monitor::open().context("netlink")?;
        Ok(Self { stop_flag: StopFlag::default(), signals, monitor, socket, follow: None })
    }

    /// Starts a thread for each source.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub(crate) fn spawn(self, events: mpsc::Sender<Message>) -> io::Result<()> {
        let Self { stop_flag, signals, mut monitor, socket, follow } = self;
        let thread = |name: &str| thread::Builder::new().name(name.into());
        if let Some(mut follow) = follow {
            let events = events.clone();
            thread("interface").spawn(move || {
                while let Ok(event) = follow.next() {
                    let _ = events.send(Message::Event(Event::Link(event)));
                }
            })?;
        }
        let sender = events.clone();
        thread("signals").spawn(move || {
            while signals.wait().is_ok() {
                stop_flag.0.store(true, Ordering::Relaxed);
                let _ = sender.send(Message::End("signal"));
            }
        })?;
        if let Some(mut watch) = socket {
            let sender = events.clone();
            thread("socket watch").spawn(move || {
                if matches!(watch.wait(), Ok(WatchOutcome::Gone)) {
                    let _ = sender.send(Message::End("the socket's file was removed"));
                }
            })?;
        }
        thread("netlink").spawn(move || {
            while let Ok(Some(event)) = monitor.next() {
                let _ = events.send(Message::Changed(event));
            }
        })?;
        Ok(())
    }
}

/// Waits for the next event. If none arrives for [`QUIET`], memory of the previous events or of
/// the start is released.
pub(crate) fn next_event(inbox: &mpsc::Receiver<Message>) -> Option<Message> {
    match inbox.recv_timeout(QUIET) {
        Err(RecvTimeoutError::Timeout) => {
            release_unused();
            inbox.recv().ok()
        }
        received => received.ok(),
    }
}

/// Collects `first` and the queued changes, without duplicates, and the message that follows them.
/// Thus thousands of routes that are added at once cost as much as one.
pub(crate) fn changes_since(
    first: netlink::Event,
    inbox: &mpsc::Receiver<Message>,
) -> (Vec<netlink::Event>, Option<Message>) {
    let (mut changes, mut known) = (vec![first], HashSet::from([first]));
    loop {
        match inbox.try_recv().ok() {
            Some(Message::Changed(change)) if known.insert(change) => changes.push(change),
            Some(Message::Changed(_)) => {}
            after => return (changes, after),
        }
    }
}

/// Releases freed memory of the heap, and code pages.
pub(crate) fn release_unused() {
    process::release_heap();
    if let Err(error) = process::release_code() {
        tracing::debug!(%error, "cannot release unused code");
    }
}

#[cfg(test)]
mod tests {
    use sys::netlink::Event as Change;

    use super::*;

    #[test]
    fn queued_changes_are_merged_by_kind() {
        let (events, inbox) = mpsc::channel();
        for _ in 0..1000 {
            for change in [Change::RoutesChanged, Change::AddressesChanged] {
                events.send(Message::Changed(change)).unwrap();
            }
        }
        events.send(Message::End("a test")).unwrap();
        events.send(Message::Changed(Change::RulesChanged)).unwrap();
        let (changes, after) = changes_since(Change::RoutesChanged, &inbox);
        assert_eq!(changes, [Change::RoutesChanged, Change::AddressesChanged]);
        assert!(matches!(after, Some(Message::End("a test"))));
        let (changes, after) = changes_since(Change::Lost, &inbox);
        assert_eq!(changes, [Change::Lost, Change::RulesChanged]);
        assert!(after.is_none());
    }
}
