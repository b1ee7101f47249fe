//! The second stage of a direction. It may run on a second thread, concurrently with the first
//! stage.
//!
//! ```text
//!   first thread    | read, write 1 | read, write 2 | wait | read, write 3 |
//!                                 `-> there         back <-'
//!   second thread                   | seal, send 1 |       | seal, send 2 |
//! ```
//!
//! There is one work value, and one thread at a time has it, so its output stays in order. It goes
//! to the second thread only while more input waits for the first. A single packet does not pay for
//! a wakeup.

use std::{
    io,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::{self, JoinHandle},
};

/// The work of a stage, with its state.
pub(crate) trait Work: Send + 'static {
    /// Processes the present state.
    fn run(&mut self);
}

/// A work value, on this thread or on the second one.
pub(crate) struct Stage<W> {
    /// `None` while the second thread has it.
    here: Option<W>,
    second: Option<SecondThread<W>>,
}

/// The second thread, and the channels to it and back.
struct SecondThread<W> {
    there: Option<SyncSender<W>>,
    back: Receiver<W>,
    thread: Option<JoinHandle<()>>,
}

impl<W: Work> Stage<W> {
    /// Creates a stage without a second thread.
    pub(crate) fn new(work: W) -> Self {
        Self { here: Some(work), second: None }
    }

    /// Starts the second thread, which calls `begin` first.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(crate) fn start_second_thread(&mut self, name: &str, begin: fn()) -> io::Result<()> {
        let (there, work) = sync_channel::<W>(1);
        let (done, back) = sync_channel(1);
        let thread = thread::Builder::new().name(name.into()).spawn(move || {
            begin();
            for mut work in work {
                work.run();
                if done.send(work).is_err() {
                    break;
                }
            }
        })?;
        self.second = Some(SecondThread { there: Some(there), back, thread: Some(thread) });
        Ok(())
    }

    /// Waits until this thread has the work, and returns it.
    ///
    /// # Errors
    /// The second thread panicked.
    pub(crate) fn get(&mut self) -> io::Result<&mut W> {
        if self.here.is_none() {
            let back = self.second.as_ref().and_then(|second| second.back.recv().ok());
            self.here = Some(back.ok_or_else(|| io::Error::other("a second thread panicked"))?);
        }
        Ok(self.here.as_mut().expect("it was put here"))
    }

    /// The work, unless the second thread has it.
    pub(crate) fn on_this_thread(&mut self) -> Option<&mut W> {
        self.here.as_mut()
    }

    /// Runs the work that [`Stage::get`] returned. If `more` input waits, the second thread runs
    /// it, if started.
    pub(crate) fn run(&mut self, more: bool) {
        let there = self.second.as_ref().filter(|_| more).and_then(|second| second.there.as_ref());
        match there {
            Some(there) => {
                // If the second thread is gone, the work is lost and `get` reports it.
                let _ = self.here.take().map(|work| there.send(work));
            }
            None => {
                if let Some(work) = &mut self.here {
                    work.run();
                }
            }
        }
    }
}

impl<W> Drop for SecondThread<W> {
    fn drop(&mut self) {
        self.there = None;
        if let Some(thread) = self.thread.take() {
            // `get` has reported a panic, or the process is ending.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    /// Waits for the gate, then sends its number.
    struct Pass {
        number: u32,
        gate: Receiver<()>,
        out: mpsc::Sender<u32>,
    }

    impl Work for Pass {
        fn run(&mut self) {
            self.gate.recv_timeout(Duration::from_secs(10)).unwrap();
            self.out.send(self.number).unwrap();
        }
    }

    #[test]
    fn the_second_thread_keeps_the_order_and_does_not_block_the_first() {
        let (open, gate) = mpsc::channel();
        let (out, done) = mpsc::channel();
        let mut stage = Stage::new(Pass { number: 0, gate, out });
        stage.start_second_thread("second", || {}).unwrap();
        for number in 1..=100 {
            // Waits until the previous work is done.
            stage.get().unwrap().number = number;
            let beside = number % 3 != 0;
            if beside {
                stage.run(true);
                // The second thread waits at the gate; this one does not.
                open.send(()).unwrap();
            } else {
                open.send(()).unwrap();
                stage.run(false);
            }
        }
        stage.get().unwrap();
        assert_eq!(done.try_iter().collect::<Vec<_>>(), (1..=100).collect::<Vec<_>>());
    }

    #[test]
    fn a_panic_of_the_second_thread_is_reported() {
        struct Panics;
        impl Work for Panics {
            fn run(&mut self) {
                panic!("as it should");
            }
        }
        let mut stage = Stage::new(Panics);
        stage.start_second_thread("second", || {}).unwrap();
        stage.get().unwrap();
        stage.run(true);
        assert!(stage.get().is_err());
        stage.run(true);
        assert!(stage.get().is_err());
    }
}
