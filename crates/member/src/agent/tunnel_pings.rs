//! Pings to peers through the tunnel, for programs and for the coordinator. They test the data
//! planes of both ends.
//!
//! ```text
//!   program ──────┐                                      ┌──► program
//!   coordinator ──┴─► TunnelPings ─► data plane ─► pong ─┴──► coordinator, by POST
//! ```

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use getrandom::{
    SysRng,
    rand_core::{Rng as _, UnwrapErr},
};
use ipc::TunnelPing;
use mesh::local_json::PingResult;
use serde_json::json;
use tailnet::{ts2021::requests::PingRequest, tsmp::Token};

use super::{local_api::Reply, this_node::ThisNode};

/// The coordinator's name for these pings (`tailcfg.PingTSMP`).
const KIND: &str = "TSMP";
/// The time limit of an answer, as for all pings (`ipn/localapi`).
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// The most pending pings.
const MAX_PINGS: usize = 64;

/// Pings without an answer.
#[derive(Default)]
pub(super) struct TunnelPings(BTreeMap<Token, PendingPing>);

struct PendingPing {
    requester: PingRequester,
    result: PingResult,
    to: IpAddr,
    sent: Duration,
}

/// The receiver of the result.
pub(super) enum PingRequester {
    Program(Reply<PingResult>),
    /// The coordinator, which gets only successful results.
    Coordinator {
        url: String,
        over_noise: bool,
    },
}

impl TunnelPings {
    /// Adds a ping. The oldest one fails if there are too many.
    fn add(&mut self, waiting: PendingPing) -> Token {
        if self.0.len() >= MAX_PINGS {
            let oldest = self.0.iter().min_by_key(|(_, one)| one.sent).map(|(token, _)| *token);
            if let Some(waiting) = oldest.and_then(|token| self.0.remove(&token)) {
                waiting.give_up();
            }
        }
        let token = UnwrapErr(SysRng).next_u64().to_be_bytes();
        self.0.insert(token, waiting);
        token
    }

    fn take(&mut self, pong: &TunnelPing) -> Option<PendingPing> {
        let is_of = |waiting: &&PendingPing| waiting.to == pong.from;
        self.0.get(&pong.token).filter(is_of)?;
        self.0.remove(&pong.token)
    }

    /// Pings the peer that `result` names.
    pub(super) fn ping(
        &mut self,
        node: &ThisNode,
        to: IpAddr,
        result: PingResult,
        requester: PingRequester,
        now: Duration,
    ) -> Option<Output> {
        let own = node.map().node().into_iter().flat_map(|own| &own.addresses);
        let mut own = own.map(|net| net.addr());
        let Some(from) = own.find(|own| own.is_ipv4() == to.is_ipv4()) else {
            let err = "this node does not have an address of that family".to_owned();
            return requester.finish(PingResult { err, ..result });
        };
        let token = self.add(PendingPing { requester, result, to, sent: now });
        Some(Output::Ping(TunnelPing { from, to, token }))
    }

    pub(super) fn handle_pong(&mut self, pong: &TunnelPing, now: Duration) -> Option<Output> {
        let PendingPing { requester, mut result, sent, .. } = self.take(pong)?;
        result.latency_seconds = now.saturating_sub(sent).as_secs_f64();
        requester.finish(result)
    }

    /// Handles a ping request of the coordinator. Other kinds of ping are ignored.
    pub(super) fn handle_request(
        &mut self,
        node: &ThisNode,
        ping: PingRequest,
        now: Duration,
    ) -> Option<Output> {
        let PingRequest { url, over_noise, types, ip } = ping;
        let (true, Ok(to)) = (types.split(',').any(|kind| kind == KIND), ip.parse()) else {
            tracing::debug!(types, ip, "an unsupported ping request");
            return None;
        };
        let requester = PingRequester::Coordinator { url, over_noise };
        match node.ping_target(to) {
            Ok((_, result)) => self.ping(node, to, result, requester, now),
            Err(result) => requester.finish(*result),
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        self.0.values().map(|waiting| waiting.sent + PING_TIMEOUT).min()
    }

    pub(super) fn handle_timeout(&mut self, now: Duration) {
        let late = |_: &Token, waiting: &mut PendingPing| waiting.sent + PING_TIMEOUT <= now;
        self.0.extract_if(.., late).for_each(|(_, waiting)| waiting.give_up());
    }
}

impl PendingPing {
    fn give_up(self) {
        if let PingRequester::Program(reply) = self.requester {
            let _ = reply.send(Ok(PingResult { err: "no reply".to_owned(), ..self.result }));
        }
    }
}

/// A message for the agent to send.
pub(super) enum Output {
    /// A ping, by the data plane.
    Ping(TunnelPing),
    /// The result of a ping, to the coordinator.
    Answer { url: String, over_noise: bool, body: Vec<u8> },
}

impl PingRequester {
    /// Sends a result to a program, or returns it for the coordinator.
    fn finish(self, result: PingResult) -> Option<Output> {
        match self {
            Self::Program(reply) => {
                // The program may be gone.
                let _ = reply.send(Ok(result));
                None
            }
            Self::Coordinator { url, over_noise } => {
                let mut body = json!(result);
                body["Type"] = json!(KIND);
                Some(Output::Answer { url, over_noise, body: body.to_string().into_bytes() })
            }
        }
    }
}
