//! Answers as messages: their header, records, EDNS and what fits.

use hickory_proto::{
    op::{Edns, Message, Metadata, OpCode, ResponseCode},
    rr::{RData, Record, rdata::SOA},
};

use super::{Answer, Transport, UDP_LEN, fqdn::Fqdn};

/// Nodes are renamed, and what is in memory here need not be kept elsewhere (tailscale
/// `net/dns/resolver/tsdns.go`). Seconds.
const TTL: u32 = 5;
/// How long a name may be taken not to exist. Seconds.
const NEGATIVE_TTL: u32 = 10;
const HEADER_LEN: usize = 12;
/// What a datagram without EDNS may have (RFC 1035, section 2.3.4).
pub(super) const PLAIN_UDP_LEN: u16 = 512;

/// Makes the reply to one request.
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

    /// How long a reply may be.
    pub(super) fn limit(&self) -> u16 {
        self.limit
    }

    /// Nothing but a code.
    pub(super) fn refuse(&self, code: ResponseCode) -> Answer {
        encode(&self.message(code), self.limit)
    }

    /// A name that exists, with its records of the type asked for, if there are any.
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

    /// A name that does not exist.
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

/// A response with nothing but its header.
pub(super) fn response(request: &Message, code: ResponseCode) -> Message {
    let mut message = Message::response(request.metadata.id, request.metadata.op_code);
    message.metadata = Metadata::response_from_request(&request.metadata);
    message.metadata.recursion_available = request.metadata.recursion_desired;
    message.metadata.response_code = code;
    message
}

/// The record by which others know how long to remember that there is nothing (RFC 2308). Nobody
/// transfers the zone, so its other fields say nothing.
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

/// What a query gets that cannot be read, as long as its header says that it is one.
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
