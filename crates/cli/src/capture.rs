//! `linerate capture`: the packets inside a tunnel, for tcpdump(1) and Wireshark.
//!
//! ```text
//!   daemon -- socket: blocks of pcapng --> Copy, whole blocks --> file or standard output
//!        <-- shutdown: ctrl-C, --count, or the output is closed
//! ```

use std::{
    fs::OpenOptions,
    io::{self, BufReader, BufWriter, IsTerminal, Read, Write},
    net::Shutdown,
    num::NonZero,
    os::unix::{fs::OpenOptionsExt, net::UnixStream},
    path::PathBuf,
    process, thread,
};

use anyhow::{Context, bail};
use clap::{Args, value_parser};
use packet::pcapng::{self, BLOCK_HEADER_LEN, Block, MAX_BLOCK_LEN, Statistics};
use sys::{Errno, process::Signals};
use wg::PublicKey;

use crate::{
    client::{Client, Refused},
    interface::InterfaceSelector,
};

/// The default of tcpdump(1), and the most that libpcap reads.
const SNAPLEN: u32 = 262_144;
/// The exit status after ctrl-C.
const INTERRUPTED: i32 = 130;

/// Arguments of `linerate capture`.
#[derive(Args)]
pub(crate) struct Capture {
    /// Write to this file, created with mode 0600; `-` is standard output, as in
    /// `linerate capture wg0 -w - | wireshark -k -i -`.
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    write: PathBuf,
    /// How many bytes of each packet to capture; 0 captures all.
    #[arg(short, long, value_name = "BYTES", default_value_t = 0,
          value_parser = value_parser!(u32).range(..=i64::from(SNAPLEN)))]
    snaplen: u32,
    /// Stop after this many packets; by default at ctrl-C.
    #[arg(short, long, value_name = "N")]
    count: Option<NonZero<u64>>,
    /// Only packets from or to this peer, given by its public key.
    #[arg(long, value_name = "KEY", value_parser = key)]
    peer: Option<PublicKey>,
    #[command(flatten)]
    selector: InterfaceSelector,
}

impl Capture {
    /// Captures until it is stopped, and prints a summary.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let to_stdout = self.write.as_os_str() == "-";
        let interface = self.selector.name()?;
        if to_stdout && io::stdout().is_terminal() {
            bail!(
                "standard output is a terminal: use `-w FILE` or `linerate capture {interface} | \
                 tcpdump -r -`"
            );
        }
        let mut stream = self.begin(&interface)?;
        let mut out: Box<dyn Write> = if to_stdout {
            Box::new(io::stdout())
        } else {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            Box::new(options.open(&self.write).with_context(|| self.write.display().to_string())?)
        };
        // Signals are blocked only here, because opening a FIFO may block.
        let signals = Signals::block()?;
        let halt = stream.get_ref().try_clone()?;
        let end = halt.try_clone()?;
        let wait = move || end_by(&signals, &end);
        thread::Builder::new().name("signals".into()).spawn(wait)?;
        eprintln!("linerate: capturing inside {interface}");
        let mut copy = Copy { left: self.count.map(NonZero::get), ..Copy::default() };
        let copied = copy.run(&mut stream, &mut out, || {
            let _ = halt.shutdown(Shutdown::Write);
        });
        let packets = copy.packets;
        copied.with_context(|| format!("after {packets} packets"))?;
        let Some(Statistics { dropped, .. }) = copy.statistics else {
            bail!("{interface}: the daemon has exited; {packets} packets were captured before");
        };
        eprintln!(
            "linerate: {packets} packets captured, {dropped} dropped because they were not read in time"
        );
        Ok(())
    }

    fn begin(&self, interface: &str) -> anyhow::Result<BufReader<UnixStream>> {
        let snaplen = if self.snaplen == 0 { SNAPLEN } else { self.snaplen };
        let mut lines = format!("snaplen={snaplen}\n");
        if let Some(peer) = &self.peer {
            lines += &format!("public_key={}\n", peer.to_hex());
        }
        let mut client = Client::connect(interface)?;
        client.send("linerate-capture", &lines).map_err(|error| {
            match error.downcast_ref().map(|Refused(errno)| Errno::from_raw(errno.abs())) {
                Some(Errno::ENOENT) => error.context("the interface does not have this peer"),
                Some(Errno::EBUSY) => error.context("too many captures are running"),
                Some(_) => error.context(
                    "the interface may not belong to linerate, or to another version of it",
                ),
                None => error,
            }
        })?;
        Ok(client.into_stream()?)
    }
}

fn key(text: &str) -> Result<PublicKey, String> {
    PublicKey::from_base64(text).map_err(|error| error.to_string())
}

/// Requests the end of the capture at the first signal. Exits at the second, because the reader of our
/// output may be stuck.
fn end_by(signals: &Signals, stream: &UnixStream) {
    let _ = signals.wait();
    let _ = stream.shutdown(Shutdown::Write);
    let _ = signals.wait();
    process::exit(INTERRUPTED);
}

/// Copies a stream of blocks.
#[derive(Default)]
struct Copy {
    /// The number of packets still to write; `None` for any number.
    left: Option<u64>,
    /// Packets written.
    packets: u64,
    /// The statistics at the end of the stream.
    statistics: Option<Statistics>,
    /// Whether the reader has closed the output.
    unread: bool,
}

impl Copy {
    /// Copies whole blocks until the stream ends. Calls `halt` after the last wanted packet, and skips
    /// those that follow.
    fn run(
        &mut self,
        stream: &mut BufReader<impl Read>,
        out: &mut impl Write,
        halt: impl Fn(),
    ) -> anyhow::Result<()> {
        let mut out = BufWriter::with_capacity(MAX_BLOCK_LEN, out);
        let mut block = Vec::with_capacity(MAX_BLOCK_LEN);
        while let Some(kind) = next(stream, &mut block)? {
            if let Block::Statistics(_) = kind {
                self.statistics = Statistics::parse(&block);
            }
            let is_packet = matches!(kind, Block::Packet(_));
            if self.unread || is_packet && self.left == Some(0) {
                continue;
            }
            let mut written = out.write_all(&block);
            // Do not delay packets for a live reader.
            if written.is_ok() && stream.buffer().is_empty() {
                written = out.flush();
            }
            if !is_read(written)? {
                self.unread = true;
                halt();
                continue;
            }
            if is_packet {
                self.packets += 1;
                self.left = self.left.map(|left| left - 1);
                if self.left == Some(0) {
                    halt();
                }
            }
        }
        let flushed = if self.unread { Ok(()) } else { out.flush() };
        is_read(flushed)?;
        // Otherwise dropping it would try to write the rest once more.
        drop(out.into_parts());
        Ok(())
    }
}

/// Whether the output is still open.
fn is_read(written: io::Result<()>) -> io::Result<bool> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}

/// Reads the next block. Returns `None` at the end of the stream, even within a block: the daemon has
/// exited.
fn next(stream: &mut impl Read, block: &mut Vec<u8>) -> anyhow::Result<Option<Block>> {
    block.resize(BLOCK_HEADER_LEN, 0);
    if !fill(stream, block)? {
        return Ok(None);
    }
    let kind = pcapng::parse_block_header(block).context("the daemon did not send pcapng")?;
    let (Block::Packet(len) | Block::Statistics(len) | Block::Other(len)) = kind;
    block.resize(len, 0);
    Ok(fill(stream, &mut block[BLOCK_HEADER_LEN..])?.then_some(kind))
}

/// Fills the buffer. Returns whether the stream had enough bytes.
fn fill(stream: &mut impl Read, room: &mut [u8]) -> io::Result<bool> {
    match stream.read_exact(room) {
        Ok(()) => Ok(true),
        Err(error) => match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => Ok(false),
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, time::Duration};

    use pcapng::{CapturedPacket, Direction};

    use super::*;

    /// A stream as a daemon sends it: packets of these lengths, and optionally its statistics.
    fn stream(lens: &[usize], dropped: Option<u64>) -> Vec<u8> {
        let mut bytes = Vec::new();
        pcapng::section(&mut bytes, "a daemon");
        pcapng::interface(&mut bytes, "wg0", "", SNAPLEN);
        for &len in lens {
            let packet = &vec![1; len][..];
            let (at, direction) = (Duration::from_secs(1), Direction::Inbound);
            let seen = CapturedPacket { at, direction, packet, dropped: 0, comment: "" };
            pcapng::packet(&mut bytes, seen, usize::MAX);
        }
        if let Some(dropped) = dropped {
            let statistics = Statistics { dropped, ..Statistics::default() };
            pcapng::statistics(&mut bytes, statistics);
        }
        bytes
    }

    /// Copies a stream. Returns the copy, its output, and how often it called `halt`.
    fn copied(bytes: &[u8], left: Option<u64>) -> (Copy, Vec<u8>, u32) {
        let (mut copy, mut out) = (Copy { left, ..Copy::default() }, Vec::new());
        let halted = Cell::new(0);
        // The reader's buffer is smaller than the header of a block.
        let mut stream = BufReader::with_capacity(7, bytes);
        copy.run(&mut stream, &mut out, || halted.set(halted.get() + 1)).unwrap();
        (copy, out, halted.get())
    }

    #[test]
    fn stream_is_copied_unchanged_with_its_statistics() {
        let bytes = stream(&[1, 65_535, 40], Some(7));
        let (copy, out, halted) = copied(&bytes, None);
        assert!(out == bytes);
        assert_eq!((copy.packets, copy.statistics.unwrap().dropped, halted), (3, 7, 0));
    }

    #[test]
    fn only_statistics_are_copied_after_the_packet_limit() {
        let (copy, out, halted) = copied(&stream(&[10, 20, 30, 40], Some(0)), Some(2));
        assert_eq!(out, stream(&[10, 20], Some(0)));
        assert_eq!((copy.packets, copy.statistics.is_some(), halted), (2, true, 1));
    }

    #[test]
    fn truncated_stream_keeps_whole_blocks_without_statistics() {
        let whole = stream(&[100, 200], None);
        for cut in [0, 1, 100] {
            let bytes = &whole[..whole.len() - cut];
            let (copy, out, _) = copied(bytes, None);
            let kept = if cut == 0 { &[100, 200][..] } else { &[100] };
            assert!(out == stream(kept, None), "{cut} bytes less");
            assert_eq!((copy.packets, copy.statistics), (kept.len() as u64, None));
        }
        let mut copy = Copy::default();
        let other = BufReader::new(&b"errno=0\n\nerrno=0\n\n"[..]);
        assert!(copy.run(&mut { other }, &mut Vec::new(), || {}).is_err());
    }

    /// An output that is closed after some bytes.
    struct Closes(usize);

    impl Write for Closes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match self.0.min(bytes.len()) {
                0 => Err(io::ErrorKind::BrokenPipe.into()),
                taken => {
                    self.0 -= taken;
                    Ok(taken)
                }
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn closed_output_stops_the_daemon_once_and_drains_its_stream() {
        let (mut copy, halted) = (Copy::default(), Cell::new(0));
        let bytes = stream(&[1000; 1000], Some(3));
        let mut stream = BufReader::with_capacity(256, &bytes[..]);
        copy.run(&mut stream, &mut Closes(3000), || halted.set(halted.get() + 1)).unwrap();
        assert_eq!((halted.get(), copy.statistics.unwrap().dropped), (1, 3));
        assert!((1..4).contains(&copy.packets), "{}", copy.packets);
    }
}
