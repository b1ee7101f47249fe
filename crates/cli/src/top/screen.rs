//! The terminal: its other screen, without echo, for as long as it is looked at.

use std::{
    io::{self, IsTerminal, Read, Stdin, Stdout, Write, stdin, stdout},
    os::fd::AsFd,
    time::Duration,
};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use sys::{poll, process::Signals};

/// To the other screen, without cursor and without breaking long lines (ECMA-48 and
/// xterm's control sequences); and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// To the upper left corner; to the end of a line, and of the screen.
const HOME: &str = "\x1b[H";
const REST_OF_LINE: &str = "\x1b[K";
const REST: &str = "\x1b[J";
/// What a terminal has that does not tell.
const USUAL: Room = Room { rows: 24, columns: 80 };
/// The keys that end: `q`, and ctrl-C and ctrl-D, which make no signal here.
const END_KEYS: [u8; 3] = [b'q', 3, 4];

/// How much fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub rows: usize,
    pub columns: usize,
}

/// Where pictures are drawn.
pub(super) struct Screen {
    signals: Signals,
    out: Stdout,
    /// Of a terminal: its input, and what it was like.
    terminal: Option<(Stdin, Option<Termios>)>,
}

impl Screen {
    /// Takes the terminal, where standard output is one.
    pub fn open(signals: Signals) -> io::Result<Self> {
        let mut out = stdout();
        if !out.is_terminal() {
            return Ok(Self { signals, out, terminal: None });
        }
        let input = stdin();
        let was = tcgetattr(&input).ok();
        if let Some(was) = &was {
            let mut raw = was.clone();
            raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
            tcsetattr(&input, OptionalActions::Now, &raw)?;
        }
        let screen = Self { signals, out: stdout(), terminal: Some((input, was)) };
        out.write_all(ENTER.as_bytes())?;
        out.flush()?;
        Ok(screen)
    }

    /// Waits for so long; whether somebody wants an end before.
    pub fn is_to_end(&mut self, time: Duration) -> io::Result<bool> {
        let until = sys::clock::boottime_nanos() + time.as_nanos() as u64;
        loop {
            let left = until.saturating_sub(sys::clock::boottime_nanos());
            let left = Some(Duration::from_nanos(left));
            let Some((input, Some(_))) = &mut self.terminal else {
                let [signalled] = poll::readable([self.signals.as_fd()], left)?;
                return Ok(signalled);
            };
            let [signalled, typed] = poll::readable([self.signals.as_fd(), input.as_fd()], left)?;
            let mut keys = [0; 16];
            if signalled || !typed {
                return Ok(signalled);
            }
            let len = input.read(&mut keys)?;
            // A terminal that is gone reads as nothing.
            if len == 0 || keys[..len].iter().any(|key| END_KEYS.contains(key)) {
                return Ok(true);
            }
        }
    }

    /// How much fits; without a terminal, everything.
    pub fn room(&self) -> Room {
        if self.terminal.is_none() {
            return Room { rows: usize::MAX, columns: usize::MAX };
        }
        match tcgetwinsize(&self.out) {
            Ok(size) if size.ws_row > 0 && size.ws_col > 0 => {
                Room { rows: size.ws_row.into(), columns: size.ws_col.into() }
            }
            _ => USUAL,
        }
    }

    /// Draws one picture in the place of the last, or below it where there is no
    /// terminal.
    pub fn draw(&mut self, lines: &[String], columns: usize) -> io::Result<()> {
        let text = match self.terminal {
            Some(_) => picture(lines, columns),
            None => lines.join("\n") + "\n\n",
        };
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }
}

/// The lines, cut where they do not fit, over what stood there.
fn picture(lines: &[String], columns: usize) -> String {
    let cut = |line: &String| line.chars().take(columns).collect::<String>() + REST_OF_LINE;
    let lines: Vec<String> = lines.iter().map(cut).collect();
    // No line end behind the last: the screen would move up.
    format!("{HOME}{}{REST}", lines.join("\r\n"))
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Some((input, was)) = &self.terminal {
            // Whatever fails, there is nobody left to tell.
            let _ = self.out.write_all(LEAVE.as_bytes());
            let _ = self.out.flush();
            if let Some(was) = was {
                let _ = tcsetattr(input, OptionalActions::Now, was);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_covers_the_last_and_fits() {
        let lines = ["abcdef".to_owned(), "ä".repeat(5)];
        let expected = "\x1b[Habcd\x1b[K\r\nääää\x1b[K\x1b[J";
        assert_eq!(picture(&lines, 4), expected);
    }
}
