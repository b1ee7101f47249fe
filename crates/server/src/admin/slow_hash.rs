//! Keys from headscale, of which only the bcrypt hash is known. One comparison runs at a time, and
//! sources take turns: guesses use at most one core, and delay another source by one comparison.
//! After too many wrong keys, a source is throttled.

use std::{
    net::IpAddr,
    sync::{Arc, LazyLock},
};

use coordinator::{State, Time, UnverifiedKey};

use crate::{
    admin::sessions::Sessions,
    clock::now,
    net::{connections, fair_semaphore::FairSemaphore},
    network::NetworkState,
};

static PERMITS: LazyLock<FairSemaphore<IpAddr>> = LazyLock::new(|| FairSemaphore::new(1, 1));

/// Replaces the slow hash of a key by a fast one if its secret is right. Counts a wrong secret.
///
/// # Errors
/// The fast hash was not stored.
pub(crate) async fn prove(
    network: &NetworkState,
    sessions: &Arc<Sessions>,
    from: IpAddr,
    find: impl Fn(&State, Time) -> Option<UnverifiedKey>,
) -> anyhow::Result<()> {
    // Most keys have a fast hash.
    if network.read(|state| find(state, now())).is_none() {
        return Ok(());
    }
    let permit = PERMITS.acquire(connections::source(from)).await?;
    if sessions.is_guessing(from, now()) {
        return Ok(());
    }
    // Another request may have replaced it in the meantime.
    let Some(unproved) = network.read(|state| find(state, now())) else { return Ok(()) };
    let sessions = Arc::clone(sessions);
    let compared = tokio::task::spawn_blocking(move || {
        // The comparison continues if the request is dropped, so it owns the permit and
        // counts the result.
        let _permit = permit;
        let is_good = bcrypt::verify(&unproved.secret, &unproved.bcrypt).unwrap_or(false);
        if !is_good {
            sessions.count_wrong_key(from, now());
        }
        is_good.then_some(unproved)
    });
    let Some(proved) = compared.await? else { return Ok(()) };
    network.run(move |state, _| state.confirm_key(&proved)).await
}

#[cfg(test)]
mod tests {
    use coordinator::{
        Settings,
        object::{ApiKey, ApiKeyId, Object},
        secret::Hash,
    };
    use tempfile::TempDir;

    use super::*;
    use crate::store::{Database, DatabaseLocation, Store};

    /// A network with the API key `abcdefg.right`, as headscale stored it.
    async fn network() -> (TempDir, Arc<NetworkState>) {
        let folder = tempfile::tempdir().unwrap();
        let file = DatabaseLocation::File(folder.path().join("store"));
        let mut store = Store::open(&file).await.unwrap();
        let hash = Hash::of_bcrypt(&bcrypt::hash("right", 4).unwrap()).unwrap();
        let (id, created) = (ApiKeyId(1), now());
        let key = ApiKey { id, prefix: "abcdefg".into(), hash, expires: None, created };
        store.commit((0, 0), &[key.stored()]).await.unwrap();
        let (network, writer) = NetworkState::open(store, Settings::default()).await.unwrap();
        tokio::spawn(writer);
        (folder, network)
    }

    #[tokio::test]
    async fn too_many_wrong_keys_block_their_source_and_no_other() {
        let ((_folder, network), sessions) = (network().await, Arc::new(Sessions::default()));
        let [guesser, other] = [7, 8].map(|host| IpAddr::from([192, 0, 2, host]));
        let shows = async |from, text: &str| {
            let find = |state: &State, now| state.unverified_api_key(text, now);
            prove(&network, &sessions, from, find).await.unwrap();
            network.read(|state| state.find_valid_api_key(text, now()).is_some())
        };
        let mut guesses = 0;
        while !sessions.is_guessing(guesser, now()) {
            assert!(!shows(guesser, "abcdefg.wrong").await);
            guesses += 1;
            assert!(guesses < 100, "guesses are counted");
        }
        assert!(!shows(guesser, "abcdefg.right").await);
        assert!(shows(other, "abcdefg.right").await);
        // It has a fast hash by now.
        assert!(shows(guesser, "abcdefg.right").await);
    }
}
