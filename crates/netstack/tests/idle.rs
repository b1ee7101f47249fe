//! Measures the memory of an idle connection. The test has its own process, because it measures the
//! process's memory.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

#[path = "stacks/wire.rs"]
#[expect(dead_code, reason = "the rest is for the tests of streams")]
mod wire;

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wire::{A, B, Wire, config, soon};

const CONNECTIONS: usize = 10_000;
/// Limit for one end.
const LIMIT: usize = 4096;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_idle_connections_cost_less_than_four_kibibytes_each() {
    let wire = Wire::with(config(A, 16 << 20), config(B, 16 << 20));
    let to = SocketAddr::new(B[0].parse().unwrap(), 80);
    let listener = wire.b.listen(to).unwrap();
    let before = resident();
    let mut streams = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        let pair = soon(async { tokio::join!(wire.a.connect(to), listener.accept()) }).await;
        let (mut near, (mut far, _)) = (pair.0.unwrap(), pair.1.unwrap());
        let mut bytes = [0; 3000];
        soon(async { tokio::join!(near.write_all(&[1; 3000]), far.read_exact(&mut bytes)) })
            .await
            .0
            .unwrap();
        streams.push((near, far));
    }
    let all = resident().saturating_sub(before);
    let each = all / (2 * CONNECTIONS);
    eprintln!("{each} bytes each, {} MB for both ends of all", all / 1_000_000);
    assert!(each < LIMIT, "{each} bytes for each end of a connection");
}

/// Resident bytes of this process.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}
