//! Pings of peers through the tunnel, for programs of this machine and for the coordinator: the data
//! plane of each end has to carry them.
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
    line::{ToPlane, TunnelPing},
    local::PingResult,
    tsmp::Token,
};

use super::{core::Agent, local_api::Reply};

/// What the coordinator calls them (`tailcfg.PingTSMP`).
const KIND: &str = "TSMP";
/// How long an answer is waited for, as of any ping (`ipn/localapi`).
const PATIENCE: Duration = Duration::from_secs(5);
/// The most that wait for an answer.
const MOST: usize = 64;

/// Those that were not answered yet.
#[derive(Default)]
pub(super) struct TunnelPings(BTreeMap<Token, Waiting>);

struct Waiting {
    asker: Asker,
    result: PingResult,
    to: IpAddr,
    sent: Duration,
}

/// Who is told the result.
pub(super) enum Asker {
    /// A program.
    Program(Reply<PingResult>),
    /// The coordinator. Where there is no answer it is told nothing.
    Coordinator { url: String, over_noise: bool },
}

impl TunnelPings {
    /// The oldest makes room.
    fn add(&mut self, waiting: Waiting) -> Token {
        if self.0.len() >= MOST {
            let oldest = self.0.iter().min_by_key(|(_, one)| one.sent).map(|(token, _)| *token);
            if let Some(waiting) = oldest.and_then(|token| self.0.remove(&token)) {
                waiting.give_up();
            }
        }
        let token = UnwrapErr(SysRng).next_u64().to_be_bytes();
        self.0.insert(token, waiting);
        token
    }

    fn take(&mut self, pong: &TunnelPing) -> Option<Waiting> {
        let is_of = |waiting: &&Waiting| waiting.to == pong.from;
        self.0.get(&pong.token).filter(is_of)?;
        self.0.remove(&pong.token)
    }

    pub fn poll_timeout(&self) -> Option<Duration> {
        self.0.values().map(|waiting| waiting.sent + PATIENCE).min()
    }

    pub fn handle_timeout(&mut self, now: Duration) {
        let late = |_: &Token, waiting: &mut Waiting| waiting.sent + PATIENCE <= now;
        self.0.extract_if(.., late).for_each(|(_, waiting)| waiting.give_up());
    }
}

impl Waiting {
    fn give_up(self) {
        if let Asker::Program(reply) = self.asker {
            let _ = reply.send(Ok(PingResult { err: "no reply".to_owned(), ..self.result }));
        }
    }
}

impl Agent {
    /// Pings a peer, of which `result` says who it is.
    pub fn ping_through_tunnel(&mut self, to: IpAddr, result: PingResult, asker: Asker) {
        let own = self.map.node().into_iter().flat_map(|own| &own.addresses).map(|net| net.addr());
        let Some(from) = own.into_iter().find(|own| own.is_ipv4() == to.is_ipv4()) else {
            let err = "this node has no address of that family".to_owned();
            self.tell_asker(asker, PingResult { err, ..result });
            return;
        };
        let sent = self.clock.now;
        let token = self.tunnel_pings.add(Waiting { asker, result, to, sent });
        self.plane.send(ToPlane::TunnelPing(TunnelPing { from, to, token }));
    }

    /// A ping was answered.
    pub fn handle_pong(&mut self, pong: &TunnelPing) {
        if let Some(Waiting { asker, mut result, sent, .. }) = self.tunnel_pings.take(pong) {
            result.latency_seconds = self.clock.now.saturating_sub(sent).as_secs_f64();
            self.tell_asker(asker, result);
        }
    }

    /// The coordinator wants a peer pinged. What it wants else is not done.
    pub fn ping_for_coordinator(&mut self, ping: PingRequest) {
        let PingRequest { url, over_noise, types, ip } = ping;
        let (true, Ok(to)) = (types.split(',').any(|kind| kind == KIND), ip.parse()) else {
            tracing::debug!(types, ip, "a ping that is not answered");
            return;
        };
        let asker = Asker::Coordinator { url, over_noise };
        match self.pinged(to) {
            Ok((_, result)) => self.ping_through_tunnel(to, result, asker),
            Err(result) => self.tell_asker(asker, *result),
        }
    }

    fn tell_asker(&mut self, asker: Asker, result: PingResult) {
        match asker {
            // It may have gone.
            Asker::Program(reply) => drop(reply.send(Ok(result))),
            Asker::Coordinator { url, over_noise } => {
                let mut said = json!(result);
                said["Type"] = json!(KIND);
                self.answer_ping(url, over_noise, said.to_string().into_bytes());
            }
        }
    }
}
