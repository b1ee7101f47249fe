//! Tells those who follow the network that something changed.

use std::{
    sync::{Weak, atomic::Ordering::Relaxed},
    time::Duration,
};

use coordinator::State;
use tokio::time::{Instant, sleep};

use super::Network;

/// Between two times that followers are told: what changes together is told together. It lasts as
/// long as they took to read on the last time, so that half of the time is left for other work.
const REST: Duration = Duration::from_millis(50);
const LONGEST_REST: Duration = Duration::from_millis(250);

/// Tells them at once, and the next time after a rest.
pub async fn tell(network: Weak<Network>) {
    while let Some(network) = network.upgrade() {
        network.published.notified().await;
        let end = network.read(State::end);
        network.follower_reads.store(0, Relaxed);
        let begun = Instant::now();
        network.changed.send_replace(end);
        let followers = network.changed.receiver_count();
        sleep(REST).await;
        let mut before = 0;
        // Those whose clients take nothing do not read, and are not waited for.
        loop {
            let read = network.follower_reads.load(Relaxed);
            if read >= followers || read == before || begun.elapsed() >= LONGEST_REST {
                break;
            }
            before = read;
            sleep(REST).await;
        }
        drop(network);
        sleep(begun.elapsed().saturating_sub(REST).min(LONGEST_REST)).await;
    }
}
