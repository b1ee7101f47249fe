//! The traffic: streams at full speed, paced datagrams, pings.

use std::net::SocketAddr;
use std::time::Duration;

use netns::{Arrived, Carried, Datagrams, Family, Pace, Pair, Ping, Pinging, Side, Stream, Train};

/// About 6 Mbit/s of single datagrams.
const SINGLE: Train =
    Train { count: 4, size: 700, segmented: false, rest: Duration::from_millis(4) };
/// About 38 Mbit/s of datagrams that enter the tunnel as super-packets, as with QUIC.
const SEGMENTED: Train =
    Train { count: 16, size: 1200, segmented: true, rest: Duration::from_millis(4) };

/// All traffic of a run.
pub(super) struct Load {
    streams: Vec<(&'static str, Stream)>,
    datagrams: Vec<(&'static str, Datagrams)>,
    pings: Pinging,
}

/// Results of the traffic, by name.
pub(super) struct LoadCarried {
    pub streams: Vec<(&'static str, Carried)>,
    pub datagrams: Vec<(&'static str, Arrived)>,
    pub pings: Ping,
}

impl Load {
    pub(super) fn start(pair: &Pair) -> Self {
        let (left, right) = (&pair.left, &pair.right);
        let stream = |from: &Side, to: &Side, family, port| {
            Stream::start(&from.host, &to.host, inside(to, family, port), Pace::FULL)
        };
        let datagrams = |from: &Side, to: &Side, family, port, train| {
            Datagrams::start(&from.host, &to.host, inside(to, family, port), train)
        };
        Self {
            streams: vec![
                ("tcp v4 ->", stream(left, right, Family::V4, 7001)),
                ("tcp v6 <-", stream(right, left, Family::V6, 7002)),
            ],
            datagrams: vec![
                ("udp v4 ->", datagrams(left, right, Family::V4, 7003, SINGLE)),
                ("udp v6 <-", datagrams(right, left, Family::V6, 7004, SEGMENTED)),
            ],
            pings: Pinging::start(&left.host, "soak", "-i 0.1 10.9.0.2"),
        }
    }

    pub(super) fn finish(self) -> LoadCarried {
        let datagrams = self.datagrams.into_iter();
        let datagrams = datagrams.map(|(name, flow)| (name, flow.finish())).collect();
        let pings = self.pings.finish();
        let streams = self.streams.into_iter();
        let streams = streams.map(|(name, flow)| (name, flow.finish())).collect();
        LoadCarried { streams, datagrams, pings }
    }
}

fn inside(side: &Side, family: Family, port: u16) -> SocketAddr {
    let address = side.inner.endpoint(family, port);
    address.parse().expect("an address of the rig")
}
