//! Encoding of answers.

use hickory_proto::{
    op::{Edns, Message, Metadata, OpCode, ResponseCode},
    rr::{RData, Record, rdata::SOA},
};

use super::{Answer, Transport, UDP_LEN, fqdn::Fqdn};

/// Names of nodes change, and the records are in memory, so that long caching is useless (tailscale
/// `net/dns/resolver/tsdns.go`). In seconds.
const TTL: u32 = 5;
/// How long a negative answer may be cached. In seconds.
const NEGATIVE_TTL: u32 = 10;
const HEADER_LEN: usize = 12;
/// The longest datagram without EDNS (RFC 1035, section 2.3.4).
pub(super) const PLAIN_UDP_LEN: u16 = 512;

/// Creates the reply to a request.
pub(super) struct Reply<'a> {
    request: &'a Message,
    limit: u16,
}

impl<'a> Reply<'a> {
    pub(super) fn new(request: &'a Message, transport: Transport) -> Self {
        let limit = match (transport, &request.edns) {
            (Transport::Tcp, _) => u16::MAX,
            (Transport::Udp, None) => PLAIN_UDP_LEN,
            (Transport::Udp, Some(edns)) => edns.max_payload().clamp(PLAIN_UDP_LEN, UDP_LEN),
        };
        Self { request, limit }
    }

    /// Returns the longest reply that the client accepts.
    pub(super) fn limit(&self) -> u16 {
        self.limit
    }

    /// Returns a reply with only a response code.
    pub(super) fn refuse(&self, code: ResponseCode) -> Answer {
        encode(&self.message(code), self.limit)
    }

    /// Returns the records of a name that exists.
    pub(super) fn data(&self, data: Vec<RData>, zone: impl FnOnce() -> Fqdn) -> Answer {
        let mut message = self.message(ResponseCode::NoError);
        message.metadata.authoritative = true;
        match self.request.queries.first() {
            Some(question) if !data.is_empty() => {
                let owner = question.name();
                message.add_answers(
                    data.into_iter().map(|d| Record::from_rdata(owner.clone(), TTL, d)),
                );
            }
            _ => add_soa(&mut message, &zone()),
        }
        encode(&message, self.limit)
    }

    /// Returns the answer for a name that does not exist.
    pub(super) fn no_name(&self, zone: &Fqdn) -> Answer {
        let mut message = self.message(ResponseCode::NXDomain);
        message.metadata.authoritative = true;
        add_soa(&mut message, zone);
        encode(&message, self.limit)
    }

    fn message(&self, code: ResponseCode) -> Message {
        let request = self.request;
        let mut message = response(request, code);
        message.add_queries(request.queries.iter().take(1).cloned());
        if request.edns.is_some() {
            let mut edns = Edns::new();
            edns.set_max_payload(UDP_LEN);
            message.set_edns(edns);
        }
        message
    }
}

/// Returns a response with only a header.
pub(super) fn response(request: &Message, code: ResponseCode) -> Message {
    let mut message = Message::response(request.metadata.id, request.metadata.op_code);
    message.metadata = Metadata::response_from_request(&request.metadata);
    message.metadata.recursion_available = request.metadata.recursion_desired;
    message.metadata.response_code = code;
    message
}

/// The record that sets the caching time of negative answers (RFC 2308). The other fields are for
/// zone transfers, which do not exist here.
pub(super) fn soa(zone: &Fqdn) -> Option<SOA> {
    let name = zone.to_name().ok()?;
    let seconds = NEGATIVE_TTL.cast_signed();
    Some(SOA::new(name.clone(), name, 1, seconds, seconds, seconds, NEGATIVE_TTL))
}

fn add_soa(message: &mut Message, zone: &Fqdn) {
    if let (Ok(name), Some(soa)) = (zone.to_name(), soa(zone)) {
        message.add_authority(Record::from_rdata(name, NEGATIVE_TTL, RData::SOA(soa)));
    }
}

fn encode(message: &Message, limit: u16) -> Answer {
    let whole = message.to_vec();
    let fits = |reply: &Vec<u8>| reply.len() <= usize::from(limit);
    match whole.ok().filter(fits).or_else(|| message.truncate().to_vec().ok()) {
        Some(reply) => Answer::Reply(reply),
        None => Answer::Ignore,
    }
}

/// Answers a malformed query, if its header can be read.
pub(super) fn format_error(query: &[u8]) -> Answer {
    let Some(&[id0, id1, flags, _]) = query.get(..HEADER_LEN).and_then(|h| h.first_chunk()) else {
        return Answer::Ignore;
    };
    if flags & 0x80 != 0 {
        return Answer::Ignore;
    }
    let message = Message::error_msg(
        u16::from_be_bytes([id0, id1]),
        OpCode::from_u8((flags >> 3) & 0x0f),
        ResponseCode::FormErr,
    );
    encode(&message, PLAIN_UDP_LEN)
}
