//! Where this machine has IPv6 alone and the network translates (NAT64): paths know addresses of
//! IPv4 as all others do, and only what passes to and from the data plane is translated.

use std::{io, net::SocketAddr, time::Duration};

use tailnet::{
    line::{Incoming, Path, ToPlane},
    nat64::{NAME, Prefix},
};
use tokio::sync::mpsc;

use super::{Found, Mesh};
use crate::agent::line::ToLine;

/// A name server that does not answer is asked again after so many seconds each: the next check is half a
/// minute away, and until then no peer behind IPv4 alone is reached directly.
const AGAIN: [u64; 4] = [1, 2, 4, 8];

/// How long an answer holds.
const HOLDS: Duration = Duration::from_secs(60);

/// What is known of a translator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Translated {
    prefix: Option<Prefix>,
    /// Whether the data plane has paths by another.
    differs: bool,
    asked: Option<Duration>,
}

impl Translated {
    /// Whether IPv4 is reached by translation.
    pub fn is_there(&self) -> bool {
        self.prefix.is_some()
    }

    /// The next check asks again.
    pub fn ask_again(&mut self) {
        self.asked = None;
    }

    /// Takes what was found out. Whether that is news.
    pub fn set(&mut self, prefix: Option<Prefix>) -> bool {
        let is_news = self.prefix != prefix;
        self.differs |= is_news;
        self.prefix = prefix;
        is_news
    }

    /// Where a datagram for an address is sent.
    pub fn outward(&self, at: SocketAddr) -> SocketAddr {
        self.prefix.map_or(at, |prefix| prefix.outward(at))
    }

    /// Who sent a datagram.
    pub fn inward(&self, at: SocketAddr) -> SocketAddr {
        self.prefix.map_or(at, |prefix| prefix.inward(at))
    }

    /// A path as the data plane has it.
    pub fn outward_path(&self, path: Path) -> Path {
        path_with(path, |at| self.outward(at))
    }

    /// A path of the data plane's.
    pub fn inward_path(&self, path: Path) -> Path {
        path_with(path, |at| self.inward(at))
    }

    /// A datagram as its sender would know it.
    pub fn inward_datagram(&self, one: Incoming) -> Incoming {
        Incoming { from: self.inward(one.from), ..one }
    }
}

fn path_with(path: Path, with: impl Fn(SocketAddr) -> SocketAddr) -> Path {
    match path {
        Path::Direct(at) => Path::Direct(with(at)),
        Path::PeerRelay { at, vni } => Path::PeerRelay { at: with(at), vni },
        Path::Auxiliary { at, number } => Path::Auxiliary { at: with(at), number },
        relay @ Path::Relay(_) => relay,
    }
}

impl Mesh {
    /// Whether this machine has an address of a family.
    pub(super) fn has_local(&self, v6: bool) -> bool {
        self.local.iter().any(|at| at.is_ipv6() == v6)
    }

    /// Has it found out whether the network translates, where that would help.
    pub(super) fn look_for_translator(&mut self, now: Duration) {
        if self.has_local(false) || !self.has_local(true) {
            self.translated.ask_again();
            self.translated.set(None);
        } else if self.translated.asked.is_none_or(|at| now >= at + HOLDS) {
            self.translated.asked = Some(now);
            look_up(&self.found);
        }
    }

    /// Takes by which prefix it does. Without an answer, what was known may still be right.
    pub(super) fn handle_translator(&mut self, answer: Option<Option<Prefix>>, now: Duration) {
        let Some(prefix) = answer else {
            self.translated.ask_again();
            return;
        };
        let prefix = prefix.filter(|_| !self.has_local(false));
        if self.translated.set(prefix) {
            tracing::info!(there = prefix.is_some(), "NAT64");
            self.netcheck.make_next_full();
            self.netcheck.stop();
            self.check(now);
        }
    }

    /// Tells the paths that lead elsewhere since a translator came or went.
    pub(super) fn retell_translated(&mut self, plane: &ToLine<ToPlane>) {
        if !std::mem::take(&mut self.translated.differs) {
            return;
        }
        for peer in self.paths.keys() {
            if let Some(path) = self.paths.path(peer).and_then(|shown| shown.path) {
                plane.send(ToPlane::Path { peer, path: self.translated.outward_path(path) });
            }
        }
    }
}

fn look_up(found: &mpsc::Sender<Found>) {
    let found = found.clone();
    tokio::spawn(async move {
        let answer = with_patience(|| async { discover().await.ok() }).await;
        let _ = found.send(Found::Translator(answer)).await;
    });
}

/// The first answer, if there is one at all.
async fn with_patience<T, F: Future<Output = Option<T>>>(ask: impl Fn() -> F) -> Option<T> {
    for wait in AGAIN {
        let answer = ask().await;
        if answer.is_some() {
            return answer;
        }
        tokio::time::sleep(Duration::from_secs(wait)).await;
    }
    ask().await
}

/// By which prefix the network translates, if it does.
///
/// # Errors
/// No name server says.
pub(in crate::agent) async fn discover() -> io::Result<Option<Prefix>> {
    let addresses = tokio::net::lookup_host((NAME, 0)).await?;
    Ok(Prefix::discover(addresses.map(|at| at.ip())))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::Instant;

    use super::*;

    /// When an answer that comes at the question with this number is there, in seconds.
    async fn answered(after: u32) -> Option<u64> {
        let (start, asked) = (Instant::now(), Cell::new(0));
        let answer = with_patience(|| async {
            asked.set(asked.get() + 1);
            (asked.get() == after).then_some(())
        });
        answer.await.map(|()| start.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_server_that_is_late_is_asked_again_and_not_for_ever() {
        let mut at = Vec::new();
        for after in 1..=6 {
            at.push(answered(after).await);
        }
        assert_eq!(at, [Some(0), Some(1), Some(3), Some(7), Some(15), None]);
    }
}
