//! Resolves the host names of endpoints.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    thread,
    time::Duration,
};

use anyhow::Context;
use config::conf::EndpointName;

/// How often a name is resolved while the network is not ready yet, with a
/// pause that doubles (wg(8) does likewise).
const TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// Resolves a name; tries again while there is no answer.
///
/// # Errors
/// It has no address, or no server answers.
pub fn resolve(name: &EndpointName) -> anyhow::Result<SocketAddr> {
    let mut pause = FIRST_PAUSE;
    for last in (0..TRIES).map(|attempt| attempt + 1 == TRIES) {
        match (name.host.as_str(), name.port).to_socket_addrs() {
            Ok(mut addresses) => {
                return addresses.next().with_context(|| format!("Endpoint = {name}: no address"));
            }
            Err(error) if last => {
                return Err(error).with_context(|| format!("Endpoint = {name}"));
            }
            Err(_) => thread::sleep(pause),
        }
        pause *= 2;
    }
    unreachable!("the last try returns")
}
