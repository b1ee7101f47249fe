//! A process that takes back what an interface leaves behind, for a peer that has given up the
//! right to: programs and settings of the host.
//!
//! ```text
//!   peer, before its sandbox -- name, hooks --> guardian: this program anew, so that it has
//!     |                                           | neither keys nor TUN nor sockets
//!     | PreDown  ------------------------------>  | runs these hooks
//!     | SaveConfig, the interface's end           |
//!     | PostDown ------------------------------>  | what the ledger tells, then these hooks
//!     x  ends, somehow ------------------------>  ends
//! ```
//!
//! Where the peer ends without a word, the ledger stays for the next `up` or `down`, as it does
//! without a guardian.

use std::{
    ffi::OsString,
    io::{self, BufRead, BufReader, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt as _},
    },
    process::{Command, Stdio},
};

use anyhow::{Context, bail};
use sys::{
    netlink::Netlink,
    process::{self, Signals},
};

use super::{complain, hooks, ledger::Ledger};
use crate::conf::Hooks;

/// What this program is called as a guardian: the whole of its first argument.
const NAME: &str = "linerate-guard";
/// The argument of one whose standard error nobody sees.
const BACKGROUND: &str = "background";
/// This program, also where its file was replaced.
const PROGRAM: &str = "/proc/self/exe";
/// What it answers when a word is done.
const DONE: u8 = b'\n';

/// A word to the guardian, and the key of the hooks that it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// While the interface is there.
    PreDown,
    /// When it is gone. It is the last.
    PostDown,
}

/// The line to a guardian.
#[derive(Debug)]
pub(super) struct Guardian {
    line: UnixStream,
}

impl Guardian {
    /// Starts one for an interface. Signals that this thread blocks are blocked there, too.
    ///
    /// # Errors
    /// There is no such process to be had.
    pub fn start(interface: &str, hooks: &Hooks, background: bool) -> io::Result<Self> {
        let (line, theirs) = UnixStream::pair()?;
        let mut command = Command::new(PROGRAM);
        command.arg0(NAME).stdin(Stdio::from(OwnedFd::from(theirs)));
        if background {
            command.arg(BACKGROUND);
        }
        command.spawn()?;
        // Only its own end of the line is left, which it cuts where it ends.
        drop(command);
        Self::charge(line, &Charge::text(interface, hooks))
    }

    /// Tells what it is there for, and hears that it knows.
    fn charge(mut line: UnixStream, text: &str) -> io::Result<Self> {
        line.write_all(text.as_bytes())?;
        line.read_exact(&mut [0])?;
        Ok(Self { line })
    }

    /// Has it do its part, and waits for that.
    ///
    /// # Errors
    /// It is gone.
    pub fn tell(&mut self, word: Word) -> anyhow::Result<()> {
        let gone = "the guardian is gone: `linerate down` takes back what it leaves";
        writeln!(self.line, "{}", word.key()).context(gone)?;
        self.line.read_exact(&mut [0]).context(gone)
    }
}

/// What the arguments of this process say of a guardian.
pub struct Guard {
    /// Whether nobody sees its standard error.
    pub background: bool,
}

impl Guard {
    /// Whether this process was started as one.
    pub fn asked_for(mut arguments: impl Iterator<Item = OsString>) -> Option<Self> {
        let is_guardian = arguments.next().is_some_and(|name| name == NAME);
        let background = arguments.next().is_some_and(|argument| argument == BACKGROUND);
        is_guardian.then_some(Self { background })
    }

    /// Does what the line on standard input says, until it is cut.
    ///
    /// # Errors
    /// It is no line to a peer.
    pub fn run(self) -> anyhow::Result<()> {
        let _signals = Signals::block().context("signals")?;
        process::harden().context("core dumps")?;
        process::rename(NAME).context("its name")?;
        let line = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        serve(&line, &mut Charge::carry_out)
    }
}

/// Reads a charge and answers its words, which `carry_out` does.
fn serve(line: &UnixStream, carry_out: &mut dyn FnMut(&Charge, Word)) -> anyhow::Result<()> {
    let mut lines = BufReader::new(line).lines();
    let charge = Charge::read(&mut lines)?;
    { line }.write_all(&[DONE])?;
    if let Err(error) = process::release_code() {
        tracing::debug!(%error, "code that is not used stays resident");
    }
    for text in lines {
        // The other end was closed with something unread.
        let Ok(text) = text else { break };
        let Some(word) = Word::of_key(&text) else { bail!("no word: {text}") };
        carry_out(&charge, word);
        // Where nobody hears it, the next word does not come either.
        let _ = { line }.write_all(&[DONE]);
    }
    Ok(())
}

/// What a guardian is to do.
#[derive(Debug, PartialEq, Eq)]
struct Charge {
    interface: String,
    hooks: Hooks,
}

impl Charge {
    /// Its lines, and an empty one. A hook has one line, as everything in the file.
    fn text(interface: &str, hooks: &Hooks) -> String {
        let words = [(Word::PreDown, &hooks.pre_down), (Word::PostDown, &hooks.post_down)];
        let hooks = words.iter().flat_map(|(word, hooks)| {
            hooks.iter().map(|hook| format!("{} = {hook}\n", word.key()))
        });
        format!("{interface}\n{}\n", hooks.collect::<String>())
    }

    fn read(lines: &mut impl Iterator<Item = io::Result<String>>) -> anyhow::Result<Self> {
        let mut next = || lines.next().context("the line was cut")?.context("the line");
        let (interface, mut hooks) = (next()?, Hooks::default());
        loop {
            let line = next()?;
            if line.is_empty() {
                return Ok(Self { interface, hooks });
            }
            let (key, hook) = line.split_once(" = ").unwrap_or((&line, ""));
            match Word::of_key(key) {
                Some(Word::PreDown) => hooks.pre_down.push(hook.to_owned()),
                Some(Word::PostDown) => hooks.post_down.push(hook.to_owned()),
                None => bail!("no hook: {line}"),
            }
        }
    }

    fn carry_out(&self, word: Word) {
        let hooks = match word {
            Word::PreDown => &self.hooks.pre_down,
            Word::PostDown => {
                complain(self.take_back());
                &self.hooks.post_down
            }
        };
        complain(hooks::run(word.key(), hooks, &self.interface));
    }

    fn take_back(&self) -> anyhow::Result<()> {
        Ledger::open(&self.interface)?.undo(&Netlink::open()?);
        Ok(())
    }
}

impl Word {
    const ALL: [Self; 2] = [Self::PreDown, Self::PostDown];

    fn key(self) -> &'static str {
        match self {
            Self::PreDown => "PreDown",
            Self::PostDown => "PostDown",
        }
    }

    fn of_key(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|word| word.key() == text)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn hooks() -> Hooks {
        Hooks {
            pre_up: vec!["not this one".into()],
            pre_down: vec!["ip rule del = 1 || true".into(), "echo %i".into()],
            post_down: vec!["echo PreDown".into()],
            ..Hooks::default()
        }
    }

    #[test]
    fn a_charge_is_read_as_it_was_told_and_has_only_what_goes_down() {
        let text = Charge::text("wg0", &hooks());
        let read = Charge::read(&mut text.lines().map(|line| Ok(line.to_owned()))).unwrap();
        let hooks = Hooks { pre_up: Vec::new(), ..hooks() };
        assert_eq!(read, Charge { interface: "wg0".into(), hooks });
        for cut in ["", "wg0\n", "wg0\nPreDown = x\n", "wg0\nPostUp = x\n\n"] {
            let mut lines = cut.lines().map(|line| Ok(line.to_owned()));
            assert!(Charge::read(&mut lines).is_err(), "{cut:?}");
        }
    }

    #[test]
    fn each_word_is_done_before_it_is_answered_and_a_cut_line_is_the_end() {
        let (line, theirs) = UnixStream::pair().unwrap();
        let (told, done) = std::sync::mpsc::channel();
        thread::scope(|scope| {
            let serving = scope.spawn(move || {
                serve(&theirs, &mut |charge, word| told.send((charge.hooks.clone(), word)).unwrap())
            });
            let mut guardian = Guardian::charge(line, &Charge::text("wg0", &hooks())).unwrap();
            for word in Word::ALL {
                guardian.tell(word).unwrap();
                let (hooks, heard) = done.try_recv().expect("it was done");
                assert_eq!((hooks.post_down.len(), heard), (1, word));
            }
            drop(guardian);
            serving.join().unwrap().unwrap();
        });
        assert!(done.try_recv().is_err());
    }

    #[test]
    fn a_guardian_that_is_gone_is_told_of() {
        let (line, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let said = Guardian { line }.tell(Word::PreDown).unwrap_err();
        assert!(said.to_string().contains("linerate down"), "{said}");
        let (line, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(Guardian::charge(line, "wg0\n\n").is_err());
    }

    #[test]
    fn only_its_own_name_makes_a_guardian() {
        let asked = |arguments: &[&str]| Guard::asked_for(arguments.iter().map(|&a| a.into()));
        assert!(asked(&["linerate", "background"]).is_none() && asked(&[]).is_none());
        assert!(asked(&[NAME, BACKGROUND]).is_some_and(|guard| guard.background));
        assert!(asked(&[NAME]).is_some_and(|guard| !guard.background));
    }
}
