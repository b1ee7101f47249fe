//! The terminal: its alternate screen, without echo.

use std::{
    io::{self, IsTerminal, Read, Stdin, Stdout, Write, stdin, stdout},
    os::fd::AsFd,
    time::Duration,
};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use sys::{poll, process::Signals};

/// Sequences that enter the alternate screen, without cursor and line wrapping, and leave it (ECMA-48 and
/// xterm's control sequences).
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// Sequences that move to the upper left corner, clear the rest of the line, and clear the rest of the
/// screen.
const HOME: &str = "\x1b[H";
const REST_OF_LINE: &str = "\x1b[K";
const REST: &str = "\x1b[J";
/// The size if the terminal does not report it.
const DEFAULT_SIZE: ScreenSize = ScreenSize { rows: 24, columns: 80 };
/// The keys that quit: `q`, ctrl-C and ctrl-D, which do not send signals in this mode.
const END_KEYS: [u8; 3] = [b'q', 3, 4];

/// The size of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScreenSize {
    pub rows: usize,
    pub columns: usize,
}

/// Draws on the terminal, or prints to another output.
pub(super) struct Screen {
    signals: Signals,
    out: Stdout,
    /// The input of the terminal and its previous mode, if the output is a terminal.
    terminal: Option<(Stdin, Option<Termios>)>,
}

impl Screen {
    /// Switches the terminal to the alternate screen, if standard output is one.
    pub(super) fn open(signals: Signals) -> io::Result<Self> {
        let mut out = stdout();
        if !out.is_terminal() {
            return Ok(Self { signals, out, terminal: None });
        }
        let input = stdin();
        let previous = tcgetattr(&input).ok();
        if let Some(previous) = &previous {
            let mut raw = previous.clone();
            raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
            tcsetattr(&input, OptionalActions::Now, &raw)?;
        }
        let screen = Self { signals, out: stdout(), terminal: Some((input, previous)) };
        out.write_all(ENTER.as_bytes())?;
        out.flush()?;
        Ok(screen)
    }

    /// Waits for this time. Returns whether the user quits meanwhile.
    pub(super) fn wait_for_quit(&mut self, time: Duration) -> io::Result<bool> {
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
            // End of file: the terminal is gone.
            if len == 0 || keys[..len].iter().any(|key| END_KEYS.contains(key)) {
                return Ok(true);
            }
        }
    }

    /// The size; unlimited without a terminal.
    pub(super) fn size(&self) -> ScreenSize {
        if self.terminal.is_none() {
            return ScreenSize { rows: usize::MAX, columns: usize::MAX };
        }
        match tcgetwinsize(&self.out) {
            Ok(size) if size.ws_row > 0 && size.ws_col > 0 => {
                ScreenSize { rows: size.ws_row.into(), columns: size.ws_col.into() }
            }
            _ => DEFAULT_SIZE,
        }
    }

    /// Draws over the previous lines, or prints below them without a terminal.
    pub(super) fn draw(&mut self, lines: &[String], columns: usize) -> io::Result<()> {
        let text = match self.terminal {
            Some(_) => frame(lines, columns),
            None => lines.join("\n") + "\n\n",
        };
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }
}

/// The lines, cut to the width, with control sequences that clear the rest.
fn frame(lines: &[String], columns: usize) -> String {
    let cut = |line: &String| line.chars().take(columns).collect::<String>() + REST_OF_LINE;
    let lines: Vec<String> = lines.iter().map(cut).collect();
    // No line break after the last line, which would scroll the screen.
    format!("{HOME}{}{REST}", lines.join("\r\n"))
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Some((input, previous)) = &self.terminal {
            // Errors cannot be reported here.
            let _ = self.out.write_all(LEAVE.as_bytes());
            let _ = self.out.flush();
            if let Some(previous) = previous {
                let _ = tcsetattr(input, OptionalActions::Now, previous);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_clears_the_previous_one_and_is_cut_to_the_width() {
        let lines = ["abcdef".to_owned(), "ä".repeat(5)];
        let expected = "\x1b[Habcd\x1b[K\r\nääää\x1b[K\x1b[J";
        assert_eq!(frame(&lines, 4), expected);
    }
}
