//! Speaks to a running peer over its UAPI socket.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    thread,
    time::Duration,
};

use anyhow::{Context, bail};
use host::sockets::find_socket;
use zeroize::Zeroizing;

/// How long a process may be silent that is asked something. A ping's answer is the longest
/// in coming.
const PATIENCE: Duration = Duration::from_secs(20);

/// How often one is looked for that may be ending.
const ENDING_LOOKS: u32 = 8;
/// The pause behind the first look, which grows by itself: a second and a half in all.
const ENDING_PAUSE: Duration = Duration::from_millis(50);

/// Bytes that are read at a time: of a capture much comes.
const ROOM: usize = 64 * 1024;

/// What was asked was refused, with this number of `errno.h` as the answer has it.
#[derive(Debug)]
pub(crate) struct Refused(pub i32);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "refused with errno {}", self.0)
    }
}

impl std::error::Error for Refused {}

/// A connection to one interface.
pub(crate) struct Client {
    name: String,
    stream: BufReader<UnixStream>,
}

impl Client {
    pub fn connect(name: &str) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(find_socket(name))
            .with_context(|| format!("{name}: no userspace interface of that name answers"))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { name: name.to_owned(), stream: BufReader::with_capacity(ROOM, stream) })
    }

    /// Sends a verb without lines and returns the lines of the answer.
    pub fn ask(&mut self, verb: &str) -> anyhow::Result<Zeroizing<String>> {
        self.tell(verb, "")
    }

    /// Sends a verb and its lines, and returns the lines of the answer.
    pub fn tell(&mut self, verb: &str, lines: &str) -> anyhow::Result<Zeroizing<String>> {
        let what = || format!("{}: {verb}", self.name);
        // Lines of a change have keys.
        let request = Zeroizing::new(format!("{verb}=1\n{lines}\n"));
        self.stream.get_mut().write_all(request.as_bytes()).with_context(what)?;
        let mut answer = Zeroizing::new(String::new());
        loop {
            let start = answer.len();
            match self.stream.read_line(&mut answer).with_context(what)? {
                0 => bail!("{}: no answer", what()),
                1 => break,
                _ => {}
            }
            if let Some(errno) = answer[start..].trim().strip_prefix("errno=")
                && errno != "0"
            {
                return Err(Refused(errno.parse().unwrap_or_default())).with_context(what);
            }
        }
        Ok(answer)
    }

    /// What comes behind the answers, however long it takes.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn into_stream(self) -> io::Result<BufReader<UnixStream>> {
        self.stream.get_ref().set_read_timeout(None)?;
        Ok(self.stream)
    }
}

/// Whether a running peer serves an interface.
pub(crate) fn answers(name: &str) -> bool {
    Client::connect(name).is_ok()
}

/// Whether nobody answers any more, or soon. Of a process that was killed the sockets are closed
/// one by one.
pub(crate) fn ends(name: &str) -> bool {
    (0..ENDING_LOOKS).any(|look| {
        thread::sleep(ENDING_PAUSE * look);
        !answers(name)
    })
}

/// Has an interface end, and waits until it has.
pub(crate) fn down(name: &str) -> anyhow::Result<()> {
    let mut client = Client::connect(name)?;
    client.ask("linerate-down").context("is it linerate's?")?;
    // The connection ends with the process, however long its hooks take.
    client.stream.get_ref().set_read_timeout(None)?;
    let mut rest = Vec::new();
    match client.stream.read_to_end(&mut rest) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(()),
        Err(error) => Err(error).context(name.to_owned()),
    }
}
