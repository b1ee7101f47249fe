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
use serde_json::json;
use tailnet::{
    control::messages::PingRequest,
    ipc::{ToDataPlane, TunnelPing},
    local::PingResult,
    tsmp::Token,
};

use super::{core::Agent, local_api::Reply};

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

    pub fn poll_timeout(&self) -> Option<Duration> {
        self.0.values().map(|waiting| waiting.sent + PING_TIMEOUT).min()
    }

    pub fn handle_timeout(&mut self, now: Duration) {
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

impl Agent {
    /// Pings the peer that `result` names.
    pub fn ping_through_tunnel(
        &mut self,
        to: IpAddr,
        result: PingResult,
        requester: PingRequester,
    ) {
        let own =
            self.node.map().node().into_iter().flat_map(|own| &own.addresses).map(|net| net.addr());
        let Some(from) = own.into_iter().find(|own| own.is_ipv4() == to.is_ipv4()) else {
            let err = "this node does not have an address of that family".to_owned();
            self.send_ping_result(requester, PingResult { err, ..result });
            return;
        };
        let sent = self.clock.now;
        let token = self.tunnel_pings.add(PendingPing { requester, result, to, sent });
        self.plane.send(ToDataPlane::TunnelPing(TunnelPing { from, to, token }));
    }

    pub fn handle_pong(&mut self, pong: &TunnelPing) {
        if let Some(PendingPing { requester, mut result, sent, .. }) = self.tunnel_pings.take(pong)
        {
            result.latency_seconds = self.clock.now.saturating_sub(sent).as_secs_f64();
            self.send_ping_result(requester, result);
        }
    }

    /// Handles a ping request of the coordinator. Other kinds of ping are ignored.
    pub fn handle_ping_request(&mut self, ping: PingRequest) {
        let PingRequest { url, over_noise, types, ip } = ping;
        let (true, Ok(to)) = (types.split(',').any(|kind| kind == KIND), ip.parse()) else {
            tracing::debug!(types, ip, "an unsupported ping request");
            return;
        };
        let requester = PingRequester::Coordinator { url, over_noise };
        match self.node.ping_target(to) {
            Ok((_, result)) => self.ping_through_tunnel(to, result, requester),
            Err(result) => self.send_ping_result(requester, *result),
        }
    }

    fn send_ping_result(&mut self, requester: PingRequester, result: PingResult) {
        match requester {
            // The program may be gone.
            PingRequester::Program(reply) => drop(reply.send(Ok(result))),
            PingRequester::Coordinator { url, over_noise } => {
                let mut body = json!(result);
                body["Type"] = json!(KIND);
                self.answer_ping(url, over_noise, body.to_string().into_bytes());
            }
        }
    }
}
