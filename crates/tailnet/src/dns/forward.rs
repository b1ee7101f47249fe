//! A query that another resolver answers: what it is asked, and which of its replies count.

use std::fmt;

use hickory_proto::{
    op::{Edns, Header, Message, MessageType, OpCode, Query, ResponseCode},
    serialize::binary::{BinDecodable, BinDecoder},
};

use super::{
    Resolver, UDP_LEN,
    reply::{PLAIN_UDP_LEN, response},
};

/// A query to pass on.
///
/// It is asked anew, under an id of its own at each resolver, with nothing of the client but the
/// question and its flags: options of EDNS are for one hop.
#[derive(Clone, Debug)]
pub struct Forward {
    resolvers: Vec<Resolver>,
    query: Vec<u8>,
    question: Query,
    /// That of the client.
    id: [u8; 2],
    /// The longest reply that the client takes.
    limit: u16,
    /// The longest datagram that a resolver was told to send.
    asked: u16,
    failed: Vec<u8>,
    cut: Vec<u8>,
}

/// What a resolver said to the question that it was asked.
#[derive(Clone, Debug)]
pub struct Reply {
    bytes: Vec<u8>,
    truncated: bool,
    code: ResponseCode,
}

/// What is not the reply: from somebody else, or to another question. The right one may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyError {
    /// No message, or one that is no reply.
    Malformed,
    /// Another id than asked with.
    OtherId,
    /// Another question than asked.
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

    /// What to send to a resolver. The id is to be random for each.
    pub fn query(&self, id: u16) -> Vec<u8> {
        let mut query = self.query.clone();
        set_id(&mut query, id.to_be_bytes());
        query
    }

    /// Reads what came back for [`Self::query`] with this id.
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
        // Some send the header alone when they refuse.
        let bare = counts.queries == 0 && code != ResponseCode::NoError;
        if !bare {
            let question = Query::read(&mut decoder).map_err(|_| ReplyError::Malformed)?;
            if counts.queries != 1 || question != self.question {
                return Err(ReplyError::OtherQuestion);
            }
        }
        Ok(Reply { bytes: reply.to_vec(), truncated: metadata.truncation, code })
    }

    /// Whether to ask again by TCP: a longer reply exists, and the client would take one.
    pub fn should_retry_over_tcp(&self, reply: &Reply) -> bool {
        reply.truncated && self.limit > self.asked
    }

    /// What the client gets of a reply.
    pub fn reply(&self, reply: Reply) -> Vec<u8> {
        if reply.bytes.len() > usize::from(self.limit) {
            return self.cut.clone();
        }
        let mut bytes = reply.bytes;
        set_id(&mut bytes, self.id);
        bytes
    }

    /// What the client gets when no resolver has answered.
    pub fn failed(&self) -> Vec<u8> {
        self.failed.clone()
    }
}

impl Reply {
    /// Whether the resolver could or would not answer, so that another should.
    pub fn is_refusal(&self) -> bool {
        matches!(self.code, ResponseCode::ServFail | ResponseCode::Refused | ResponseCode::NotImp)
    }
}

fn set_id(message: &mut [u8], id: [u8; 2]) {
    if let Some(start) = message.first_chunk_mut() {
        *start = id;
    }
}
