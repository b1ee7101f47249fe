//! Forwarded queries and the replies to them.

use std::fmt;

use hickory_proto::{
    op::{Edns, Header, Message, MessageType, OpCode, Query, ResponseCode},
    serialize::binary::{BinDecodable, BinDecoder},
};

use super::{
    Resolver, UDP_LEN,
    reply::{PLAIN_UDP_LEN, response},
};

/// A query to forward.
///
/// The new query contains only the question and the flags of the client, because EDNS options are
/// for one hop. Each resolver gets a separate ID.
#[derive(Clone, Debug)]
pub struct Forward {
    resolvers: Vec<Resolver>,
    query: Vec<u8>,
    question: Query,
    /// The client's ID.
    id: [u8; 2],
    /// The longest reply that the client accepts.
    limit: u16,
    /// The longest datagram that the resolver may send.
    asked: u16,
    failed: Vec<u8>,
    cut: Vec<u8>,
}

/// The reply of a resolver.
#[derive(Clone, Debug)]
pub struct Reply {
    bytes: Vec<u8>,
    truncated: bool,
    code: ResponseCode,
}

/// The reason why a datagram is not the reply. The correct one may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyError {
    /// The datagram is not a valid reply.
    Malformed,
    /// The ID is not that of the query.
    OtherId,
    /// The question is not that of the query.
    OtherQuestion,
}

impl fmt::Display for ReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "not a reply",
            Self::OtherId => "a reply to another query",
            Self::OtherQuestion => "a reply to another question",
        })
    }
}

impl std::error::Error for ReplyError {}

impl Forward {
    pub(super) fn new(request: &Message, resolvers: &[Resolver], limit: u16) -> Option<Self> {
        let question = request.queries.first()?.clone();
        let mut query = Message::new(0, MessageType::Query, OpCode::Query);
        query.metadata.recursion_desired = request.metadata.recursion_desired;
        query.metadata.checking_disabled = request.metadata.checking_disabled;
        query.metadata.authentic_data = request.metadata.authentic_data;
        query.add_query(question.clone());
        if let Some(edns) = &request.edns {
            let mut own = Edns::new();
            own.set_max_payload(UDP_LEN).set_dnssec_ok(edns.flags().dnssec_ok);
            query.set_edns(own);
        }
        let [failed, mut cut] = [ResponseCode::ServFail, ResponseCode::NoError].map(|code| {
            let mut message = response(request, code);
            message.add_query(question.clone());
            message
        });
        cut.metadata.truncation = true;
        Some(Self {
            resolvers: resolvers.to_vec(),
            query: query.to_vec().ok()?,
            question,
            id: request.metadata.id.to_be_bytes(),
            limit,
            asked: if request.edns.is_some() { UDP_LEN } else { PLAIN_UDP_LEN },
            failed: failed.to_vec().ok()?,
            cut: cut.to_vec().ok()?,
        })
    }

    /// Whom to ask.
    pub fn resolvers(&self) -> &[Resolver] {
        &self.resolvers
    }

    /// Returns the query for a resolver. The ID must be random.
    pub fn query(&self, id: u16) -> Vec<u8> {
        let mut query = self.query.clone();
        set_id(&mut query, id.to_be_bytes());
        query
    }

    /// Reads the reply to [`Self::query`] with this ID.
    pub fn read(&self, id: u16, reply: &[u8]) -> Result<Reply, ReplyError> {
        let mut decoder = BinDecoder::new(reply);
        let Header { metadata, counts } =
            Header::read(&mut decoder).map_err(|_| ReplyError::Malformed)?;
        if metadata.message_type != MessageType::Response {
            return Err(ReplyError::Malformed);
        }
        if metadata.id != id {
            return Err(ReplyError::OtherId);
        }
        let code = metadata.response_code;
        // Some resolvers send only the header of a refusal.
        let bare = counts.queries == 0 && code != ResponseCode::NoError;
        if !bare {
            let question = Query::read(&mut decoder).map_err(|_| ReplyError::Malformed)?;
            if counts.queries != 1 || question != self.question {
                return Err(ReplyError::OtherQuestion);
            }
        }
        Ok(Reply { bytes: reply.to_vec(), truncated: metadata.truncation, code })
    }

    /// Returns whether to retry over TCP: a longer reply exists, and the client accepts one.
    pub fn should_retry_over_tcp(&self, reply: &Reply) -> bool {
        reply.truncated && self.limit > self.asked
    }

    /// Returns the answer to the client.
    pub fn reply(&self, reply: Reply) -> Vec<u8> {
        if reply.bytes.len() > usize::from(self.limit) {
            return self.cut.clone();
        }
        let mut bytes = reply.bytes;
        set_id(&mut bytes, self.id);
        bytes
    }

    /// Returns the answer to the client if no resolver replied.
    pub fn failed(&self) -> Vec<u8> {
        self.failed.clone()
    }
}

impl Reply {
    /// Returns whether the resolver refused or failed, so that another one should be used.
    pub fn is_refusal(&self) -> bool {
        matches!(self.code, ResponseCode::ServFail | ResponseCode::Refused | ResponseCode::NotImp)
    }
}

fn set_id(message: &mut [u8], id: [u8; 2]) {
    if let Some(start) = message.first_chunk_mut() {
        *start = id;
    }
}
