//! Look-ups of the NAT64 prefix by the name servers of this machine (RFC 7050).

use std::{io, time::Duration};

use mesh::nat64::{NAME, Prefix};

/// The delays before a silent name server is queried again, in seconds. The next check is half a
/// minute later, and until then peers with only IPv4 have no direct path.
const RETRY_SECONDS: [u64; 4] = [1, 2, 4, 8];

/// The NAT64 prefix of the network, if there is one.
///
/// # Errors
/// No name server answers.
pub(super) async fn discover_prefix() -> io::Result<Option<Prefix>> {
    let addresses = tokio::net::lookup_host((NAME, 0)).await?;
    Ok(Prefix::discover(addresses.map(|at| at.ip())))
}

/// As [`discover_prefix`], with retries. The outer `None` means that no name server answered.
pub(super) async fn discover_with_retries() -> Option<Option<Prefix>> {
    with_retries(|| async { discover_prefix().await.ok() }).await
}

/// The first answer within the limit of attempts.
async fn with_retries<T, F: Future<Output = Option<T>>>(query: impl Fn() -> F) -> Option<T> {
    for wait in RETRY_SECONDS {
        let answer = query().await;
        if answer.is_some() {
            return answer;
        }
        tokio::time::sleep(Duration::from_secs(wait)).await;
    }
    query().await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::Instant;

    use super::*;

    /// The seconds until an answer that only attempt number `after` gets.
    async fn answered(after: u32) -> Option<u64> {
        let (start, attempts) = (Instant::now(), Cell::new(0));
        let answer = with_retries(|| async {
            attempts.set(attempts.get() + 1);
            (attempts.get() == after).then_some(())
        });
        answer.await.map(|()| start.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn silent_name_server_is_queried_again_a_limited_number_of_times() {
        let mut at = Vec::new();
        for after in 1..=6 {
            at.push(answered(after).await);
        }
        assert_eq!(at, [Some(0), Some(1), Some(3), Some(7), Some(15), None]);
    }
}
