//! Speaks to a running peer over its UAPI socket.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

use anyhow::{Context, bail};
use node::server::find_socket;
use zeroize::Zeroizing;

/// How long a process may be silent that is asked something. A ping's answer is the longest
/// in coming.
const PATIENCE: Duration = Duration::from_secs(20);

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
        Ok(Self { name: name.to_owned(), stream: BufReader::new(stream) })
    }

    /// Sends a verb without lines and returns the lines of the answer.
    pub fn ask(&mut self, verb: &str) -> anyhow::Result<Zeroizing<String>> {
        self.tell(verb, "")
    }

    /// Sends a verb and its lines, and returns the lines of the answer.
    pub fn tell(&mut self, verb: &str, lines: &str) -> anyhow::Result<Zeroizing<String>> {
        let what = || format!("{}: {verb}", self.name);
        let request = format!("{verb}=1\n{lines}\n");
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
                bail!("{}: refused with errno {errno}", what());
            }
        }
        Ok(answer)
    }
}

/// Whether a running peer serves an interface.
pub(crate) fn answers(name: &str) -> bool {
    Client::connect(name).is_ok()
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
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(()),
        Err(error) => Err(error).context(name.to_owned()),
    }
}
