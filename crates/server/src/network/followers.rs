//! Notifies the followers of a network about changes.

use std::{
    sync::{Weak, atomic::Ordering::Relaxed},
    time::Duration,
};

use coordinator::State;
use tokio::time::{Instant, sleep};

use super::NetworkState;

/// Minimum time between two notifications, so that simultaneous changes are sent together. It is
/// extended by the time that followers took to read, so that half of the time remains for other
/// work.
const REST: Duration = Duration::from_millis(50);
const LONGEST_REST: Duration = Duration::from_millis(250);

/// Notifies followers at once, and again after a pause.
pub(super) async fn notify_followers(network: Weak<NetworkState>) {
    while let Some(network) = network.upgrade() {
        network.published.notified().await;
        let end = network.read(State::end);
        network.follower_reads.store(0, Relaxed);
        let begun = Instant::now();
        network.changed.send_replace(end);
        let followers = network.changed.receiver_count();
        sleep(REST).await;
        let mut before = 0;
        // Followers of clients that read nothing do not read the log, and must not delay the
        // others.
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
