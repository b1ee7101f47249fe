//! Keys that headscale made, of which only bcrypt's hash is known. One at a time is compared: who
//! guesses at them costs one core at most, and nobody waits for it but those who bring such keys.

use coordinator::{State, Time, Unproved};
use tokio::sync::Semaphore;

use crate::{clock::now, network::Network};

static TURN: Semaphore = Semaphore::const_new(1);

/// Has a key be known by a fast hash from here on, if its secret is the one that was hashed slowly.
///
/// # Errors
/// It could not be kept.
pub async fn prove(
    network: &Network,
    find: impl Fn(&State, Time) -> Option<Unproved>,
) -> anyhow::Result<()> {
    if network.read(|state| find(state, now())).is_none() {
        return Ok(());
    }
    let _turn = TURN.acquire().await?;
    // Another request may have brought the same key meanwhile.
    let Some(unproved) = network.read(|state| find(state, now())) else { return Ok(()) };
    let compared = tokio::task::spawn_blocking(move || {
        let is_good = bcrypt::verify(&unproved.secret, &unproved.bcrypt);
        is_good.unwrap_or(false).then_some(unproved)
    });
    if let Some(proved) = compared.await? {
        network.run(move |state, _| state.prove(&proved)).await?;
    }
    Ok(())
}
