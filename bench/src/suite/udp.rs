//! Floods of UDP, by the generator of `crate::flood`, and where their packets went.
//!
//! ```text
//!   sender --> TUN ring --> daemon ~~~~ outer socket --> daemon --> inner socket (the sink)
//!   offered    `ring`                   `socket`                    `carried`
//! ```
//!
//! The sink reads nothing, so each datagram that the far kernel delivers is one that the sink's
//! full buffer dropped, and counted. All is read at two instants while the flood is on: what
//! queues at its ends is left out.

use std::process::Stdio;
use std::thread;
use std::time::Duration;

use netns::{Host, INTERFACE, PORT, Stopwatch};

use super::{Server, Turn, generator};
use crate::flood::Sent;
use crate::measure::{
    Measure, OVERLOAD, OVERLOAD_PEAK, UDP_64, UDP_64_RING, UDP_64_SENT, UDP_64_SOCKET, UDP_1380,
    UDP_1380_RING, UDP_1380_SENT, UDP_1380_SOCKET, UDP_GSO, UDP_GSO_RING, UDP_GSO_SENT,
    UDP_GSO_SOCKET,
};

/// The discard port.
const SINK: u16 = 9;

/// The flood is on for so long before its counters are first read, and after they were last.
const EDGE: Duration = Duration::from_millis(200);

/// The largest payload that the tests use: with the headers of IPv4 and UDP it fits the MTU.
const LARGE: usize = 1380;

/// What a paced sender tries, of what an unpaced one offers. The slowest peers carry a tenth of it.
const RAMP: [f64; 5] = [0.1, 0.25, 0.5, 0.75, 1.0];

/// Packets a second, in thousands.
struct Flow {
    sent: f64,
    ring: f64,
    socket: f64,
    carried: f64,
}

/// Counters at one instant.
struct Counters {
    ring: u64,
    socket: u64,
    carried: u64,
}

impl Turn<'_> {
    pub(super) fn udp(&mut self) {
        let floods: [(&str, [&'static Measure; 4]); 3] = [
            ("64", [&UDP_64, &UDP_64_SENT, &UDP_64_RING, &UDP_64_SOCKET]),
            ("1380", [&UDP_1380, &UDP_1380_SENT, &UDP_1380_RING, &UDP_1380_SOCKET]),
            ("1380 --segment", [&UDP_GSO, &UDP_GSO_SENT, &UDP_GSO_RING, &UDP_GSO_SOCKET]),
        ];
        for (arguments, [carried, sent, ring, socket]) in floods {
            let flow = self.flood(arguments, self.time());
            self.note(carried, flow.carried);
            self.note(sent, flow.sent);
            self.note(ring, flow.ring);
            self.note(socket, flow.socket);
        }
    }

    pub(super) fn overload(&mut self) {
        let flooded = self.flood(&LARGE.to_string(), self.time());
        let paced = RAMP.map(|part| {
            let rate = part * flooded.sent * 1e3;
            self.flood(&format!("{LARGE} --rate {rate:.0}"), self.time() / 2).carried
        });
        let peak = paced.into_iter().fold(flooded.carried, f64::max);
        self.note(&OVERLOAD_PEAK, peak);
        self.note(&OVERLOAD, 100.0 * flooded.carried / peak);
    }

    fn time(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }

    /// Floods from left to right; `arguments` are the size and the options of the sender.
    fn flood(&self, arguments: &str, time: Duration) -> Flow {
        let (left, right) = (self.left(), self.right());
        let _sink = Server::start(right, &["sink", &SINK.to_string()], SINK);
        let whole = (time + 2 * EDGE).as_secs_f64();
        let sender = left
            .command(generator())
            .args(["flood", &format!("{}:{SINK}", self.target()), &whole.to_string()])
            .args(arguments.split(' '))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("nsenter is installed (make deps)");
        thread::sleep(EDGE);
        let (watch, before) = (Stopwatch::start(), Counters::read(left, right));
        thread::sleep(time);
        let (time, after) = (watch.elapsed().as_secs_f64(), Counters::read(left, right));

        let output = sender.wait_with_output().expect("a child can be waited for");
        let sent = Sent::parse(&String::from_utf8_lossy(&output.stdout));
        let sent = sent.expect("the sender told what it did");
        let rate = |of: fn(&Counters) -> u64| (of(&after) - of(&before)) as f64 / time / 1e3;
        Flow {
            sent: sent.datagrams as f64 / sent.seconds / 1e3,
            ring: rate(|counters| counters.ring),
            socket: rate(|counters| counters.socket),
            carried: rate(|counters| counters.carried),
        }
    }
}

impl Counters {
    fn read(left: &Host, right: &Host) -> Counters {
        Counters {
            ring: left.dropped_by_device(INTERFACE),
            socket: right.dropped_by_socket(PORT).unwrap_or(0),
            carried: right.dropped_by_socket(SINK).unwrap_or(0),
        }
    }
}
