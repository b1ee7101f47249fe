//! The messages of peer relays, as bytes (tailscale `disco/disco.go`, types 4 to 9).

use std::{net::SocketAddr, time::Duration};

use super::{
    MAX_ENDPOINTS,
    codec::{ENDPOINT, read_endpoint, write_endpoint},
};
use crate::{geneve::Vni, keys::DiscoPublic};

/// The length of a relay's challenge, which only the relay can create.
pub const CHALLENGE_LEN: usize = 32;

/// A step of the handshake that binds a client's address to an endpoint. All three steps have the
/// same fields and the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The endpoint, as in the Geneve header.
    pub vni: Vni,
    /// The client's number of this handshake, never 0.
    pub generation: u32,
    /// The other client.
    pub other: DiscoPublic,
    /// The server's challenge; zero in the first step.
    pub challenge: [u8; CHALLENGE_LEN],
}

/// An endpoint of a relay, for two clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayEndpoint {
    /// The key of the relay, which changes with each start.
    pub server: DiscoPublic,
    /// The two clients that may bind.
    pub clients: [DiscoPublic; 2],
    /// The number of this endpoint. Later ones have larger numbers.
    pub lamport: u64,
    /// The identifier in the header of its datagrams.
    pub vni: Vni,
    /// How long the endpoint waits for both clients.
    pub bind_lifetime: Duration,
    /// How long the endpoint exists without data of both clients.
    pub steady_lifetime: Duration,
    /// The addresses of the relay.
    pub addresses: Vec<SocketAddr>,
}

/// Requests an endpoint from a relay. Sent only through DERP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocateRequest {
    /// The two clients that may bind. One of them is the sender.
    pub clients: [DiscoPublic; 2],
    /// Returned in the answer.
    pub generation: u32,
}

impl Bind {
    pub(super) fn write(&self, text: &mut Vec<u8>) {
        text.extend_from_slice(&self.vni.get().to_be_bytes());
        text.extend_from_slice(&self.generation.to_be_bytes());
        text.extend_from_slice(&self.other.0);
        text.extend_from_slice(&self.challenge);
    }

    pub(super) fn read(mut text: &[u8]) -> Option<Self> {
        let text = &mut text;
        let vni = Vni::new(u32::from_be_bytes(take(text)?))?;
        let generation = u32::from_be_bytes(take(text)?);
        Some(Self { vni, generation, other: DiscoPublic(take(text)?), challenge: take(text)? })
    }
}

impl AllocateRequest {
    pub(super) fn write(&self, text: &mut Vec<u8>) {
        self.clients.iter().for_each(|client| text.extend_from_slice(&client.0));
        text.extend_from_slice(&self.generation.to_be_bytes());
    }

    pub(super) fn read(mut text: &[u8]) -> Option<Self> {
        let text = &mut text;
        let clients = [DiscoPublic(take(text)?), DiscoPublic(take(text)?)];
        Some(Self { clients, generation: u32::from_be_bytes(take(text)?) })
    }
}

impl RelayEndpoint {
    pub(super) fn write(&self, text: &mut Vec<u8>) {
        text.extend_from_slice(&self.server.0);
        self.clients.iter().for_each(|client| text.extend_from_slice(&client.0));
        text.extend_from_slice(&self.lamport.to_be_bytes());
        text.extend_from_slice(&self.vni.get().to_be_bytes());
        for lifetime in [self.bind_lifetime, self.steady_lifetime] {
            text.extend_from_slice(&nanos(lifetime).to_be_bytes());
        }
        text.extend(self.addresses.iter().flat_map(|address| write_endpoint(*address)));
    }

    /// An endpoint without addresses is not valid. Addresses beyond the limit are ignored.
    pub(super) fn read(mut text: &[u8]) -> Option<Self> {
        let text = &mut text;
        let server = DiscoPublic(take(text)?);
        let clients = [DiscoPublic(take(text)?), DiscoPublic(take(text)?)];
        let lamport = u64::from_be_bytes(take(text)?);
        let vni = Vni::new(u32::from_be_bytes(take(text)?))?;
        let mut lifetime = || take(text).map(|nanos| lifetime(i64::from_be_bytes(nanos)));
        let (bind_lifetime, steady_lifetime) = (lifetime()?, lifetime()?);
        let (addresses @ [_, ..], []) = text.as_chunks::<ENDPOINT>() else { return None };
        let addresses = addresses.iter().take(MAX_ENDPOINTS).map(read_endpoint).collect();
        Some(Self { server, clients, lamport, vni, bind_lifetime, steady_lifetime, addresses })
    }
}

/// Go's `time.Duration`.
fn nanos(lifetime: Duration) -> i64 {
    i64::try_from(lifetime.as_nanos()).unwrap_or(i64::MAX)
}

fn lifetime(nanos: i64) -> Duration {
    Duration::from_nanos(nanos.try_into().unwrap_or_default())
}

fn take<const N: usize>(text: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = text.split_first_chunk()?;
    *text = rest;
    Some(*head)
}
