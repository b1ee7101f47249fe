//! A stage of one direction's work, that a second thread may do beside the first.
//!
//! ```text
//!   first thread    | read, write 1 | read, write 2 | wait | read, write 3 |
//!                                 `-> there         back <-'
//!   second thread                   | seal, send 1 |       | seal, send 2 |
//! ```
//!
//! There is one such work and it is in one place at a time, so what it does keeps
//! its order by construction. It goes to the second thread only while more waits
//! for the first: a lone packet pays for no wake.

use std::{
    io,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::{self, JoinHandle},
};

/// What a stage does with what it holds.
pub(crate) trait Work: Send + 'static {
    /// Does it.
    fn run(&mut self);
}

/// A work, here or beside.
pub(crate) struct Stage<W> {
    /// The work, while it is here.
    here: Option<W>,
    second: Option<SecondThread<W>>,
}

/// The second thread, and the ways to it and back.
struct SecondThread<W> {
    there: Option<SyncSender<W>>,
    back: Receiver<W>,
    thread: Option<JoinHandle<()>>,
}

impl<W: Work> Stage<W> {
    /// A stage of one thread.
    pub fn new(work: W) -> Self {
        Self { here: Some(work), second: None }
    }

    /// Starts the second thread, which does `begin` first.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub fn start_second_thread(&mut self, name: &str, begin: fn()) -> io::Result<()> {
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

    /// The work, once it is back.
    ///
    /// # Errors
    /// The second thread panicked.
    pub fn get(&mut self) -> io::Result<&mut W> {
        if self.here.is_none() {
            let back = self.second.as_ref().and_then(|second| second.back.recv().ok());
            self.here = Some(back.ok_or_else(|| io::Error::other("a second thread panicked"))?);
        }
        Ok(self.here.as_mut().expect("it was put here"))
    }

    /// The work, where it is not away.
    pub fn here(&mut self) -> Option<&mut W> {
        self.here.as_mut()
    }

    /// Does the work that [`Stage::get`] gave; beside, where `more` waits and
    /// there is a second thread.
    pub fn run(&mut self, more: bool) {
        let there = self.second.as_ref().filter(|_| more).and_then(|second| second.there.as_ref());
        match there {
            Some(there) => {
                // Where the second thread is gone, so is the work, and `get` tells.
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
            // A panic was told by `get`, or ends with the process.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    /// Waits for a number, and passes it on.
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
    fn what_is_done_beside_keeps_its_order_and_the_first_thread_goes_on_meanwhile() {
        let (open, gate) = mpsc::channel();
        let (out, done) = mpsc::channel();
        let mut stage = Stage::new(Pass { number: 0, gate, out });
        stage.start_second_thread("second", || {}).unwrap();
        for number in 1..=100 {
            // Comes back only when the one before is done.
            stage.get().unwrap().number = number;
            let beside = number % 3 != 0;
            if beside {
                stage.run(true);
                // It waits at the gate; we do not.
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
    fn a_second_thread_that_panicked_is_told() {
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
