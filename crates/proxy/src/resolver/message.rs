//! DNS queries and answers (RFC 1035, RFC 3596).

use std::net::IpAddr;

use hickory_proto::{
    op::{self, Header, Message, MessageType, OpCode, ResponseCode},
    rr::{self, DNSClass, Name, RData, RecordType},
    serialize::binary::{BinDecodable, BinDecoder, DecodeError},
};

/// The maximum number of addresses that are read from an answer. A client hardly tries more.
const MAX_ADDRESSES: usize = 16;

/// The record type of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Record {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
}

/// The answer of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Addresses, possibly none, and their time to live in seconds.
    Addresses(Vec<IpAddr>, u32),
    /// The name does not exist (NXDOMAIN).
    NoSuchName,
    /// The server failed or refused. Another one might answer.
    Failed,
    /// The answer does not fit a datagram.
    Truncated,
}

/// A query for the addresses of a name.
#[derive(Clone, Debug)]
pub struct Query {
    text: Vec<u8>,
    id: u16,
    question: op::Query,
}

impl Query {
    /// A query for `name`, or `None` if that is not a valid name.
    pub fn new(id: u16, name: &str, record: Record) -> Option<Self> {
        let labels = name.strip_suffix('.').unwrap_or(name).split('.').map(str::as_bytes);
        let question = op::Query::query(Name::from_labels(labels).ok()?, record.into());
        let mut message = Message::new(id, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.add_query(question.clone());
        Some(Self { text: message.to_vec().ok()?, id, question })
    }

    /// The message to send.
    pub fn as_bytes(&self) -> &[u8] {
        &self.text
    }

    /// Reads the answer. `None` if the message does not answer this query.
    pub fn answer(&self, message: &[u8]) -> Option<Answer> {
        let mut decoder = BinDecoder::new(message);
        let Header { metadata, counts } = Header::read(&mut decoder).ok()?;
        let is_ours = metadata.id == self.id
            && metadata.message_type == MessageType::Response
            && metadata.op_code == OpCode::Query
            && counts.queries == 1
            && op::Query::read(&mut decoder).ok()? == self.question;
        if !is_ours {
            return None;
        }
        if metadata.truncation {
            return Some(Answer::Truncated);
        }
        Some(match metadata.response_code {
            ResponseCode::NoError => {
                self.records(&mut decoder, counts.answers).unwrap_or(Answer::Failed)
            }
            ResponseCode::NXDomain => Answer::NoSuchName,
            _ => Answer::Failed,
        })
    }

    /// Reads all addresses of the answer section. A recursive server includes those at the end of a
    /// chain of aliases, and no other records of this type. Names in answers are not compared.
    fn records(&self, decoder: &mut BinDecoder<'_>, count: u16) -> Result<Answer, DecodeError> {
        let mut addresses = Vec::new();
        let mut least = if count == 0 { 0 } else { u32::MAX };
        for _ in 0..count {
            let record = rr::Record::read(decoder)?;
            least = least.min(record.ttl);
            let is_queried = record.dns_class == DNSClass::IN
                && record.record_type() == self.question.query_type();
            if let Some(address) = ip(&record.data)
                && is_queried
                && addresses.len() < MAX_ADDRESSES
            {
                addresses.push(address);
            }
        }
        Ok(Answer::Addresses(addresses, least))
    }
}

impl From<Record> for RecordType {
    fn from(record: Record) -> Self {
        match record {
            Record::A => Self::A,
            Record::Aaaa => Self::AAAA,
        }
    }
}

fn ip(data: &RData) -> Option<IpAddr> {
    match data {
        RData::A(address) => Some(address.0.into()),
        RData::AAAA(address) => Some(address.0.into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bits of the header: a response, a truncated one, and recursion desired.
    const QR: u16 = 0x8000;
    const TC: u16 = 0x0200;
    const RD: u16 = 0x0100;

    fn query(record: Record) -> Query {
        Query::new(0x1234, "www.Example.", record).unwrap()
    }

    /// An answer with an alias: a CNAME, then the address.
    fn response(flags: u16, record: Record, data: &[u8]) -> Vec<u8> {
        let mut text = query(record).text;
        text[2..4].copy_from_slice(&(QR | RD | flags).to_be_bytes());
        text[7] = 2;
        text.extend_from_slice(&[0xc0, 12, 0, 5, 0, 1, 0, 0, 1, 0, 0, 4, 1, b'a', 0xc0, 16]);
        text.extend_from_slice(&[
            1,
            b'a',
            0xc0,
            16,
            0,
            u16::from(RecordType::from(record)) as u8,
            0,
            1,
            0,
            0,
            0,
            60,
        ]);
        text.extend_from_slice(&(data.len() as u16).to_be_bytes());
        text.extend_from_slice(data);
        text
    }

    #[test]
    fn addresses_behind_an_alias_have_the_smallest_ttl() {
        let v6 = [&[0xfd][..], &[0; 14], &[1]].concat();
        for (record, data, address) in
            [(Record::A, &[10, 0, 0, 1][..], "10.0.0.1"), (Record::Aaaa, &v6, "fd00::1")]
        {
            let answer = query(record).answer(&response(0, record, data));
            assert_eq!(answer, Some(Answer::Addresses(vec![address.parse().unwrap()], 60)));
        }
    }

    #[test]
    fn answer_with_many_addresses_is_cut_to_the_first_16() {
        let mut response = response(0, Record::A, &[10, 0, 0, 0]);
        let record = response[response.len() - 18..].to_vec();
        for last in 1..30 {
            response.extend_from_slice(&record);
            *response.last_mut().unwrap() = last;
        }
        response[7] += 29;
        let first = (0..16).map(|last| [10, 0, 0, last].into()).collect();
        let answer = query(Record::A).answer(&response);
        assert_eq!(answer, Some(Answer::Addresses(first, 60)));
    }

    #[test]
    fn response_codes_map_to_answers() {
        for (flags, answer) in [
            (3, Answer::NoSuchName),
            (2, Answer::Failed),
            (5, Answer::Failed),
            (TC, Answer::Truncated),
        ] {
            let response = response(flags, Record::A, &[10, 0, 0, 1]);
            assert_eq!(query(Record::A).answer(&response), Some(answer));
        }
    }

    #[test]
    fn response_to_another_query_is_ignored() {
        let right = response(0, Record::A, &[10, 0, 0, 1]);
        for (at, byte) in [(0, 0), (2, 0), (5, 2), (13, b'x'), (27, 28)] {
            let mut wrong = right.clone();
            assert_ne!(wrong[at], byte);
            wrong[at] = byte;
            assert_eq!(query(Record::A).answer(&wrong), None, "byte {at}");
        }
        let mut in_capitals = right.clone();
        in_capitals[13] = b'W';
        assert!(query(Record::A).answer(&in_capitals).is_some());
    }

    #[test]
    fn truncated_message_gives_no_address() {
        let whole = response(0, Record::A, &[10, 0, 0, 1]);
        for len in 0..whole.len() {
            let answer = query(Record::A).answer(&whole[..len]);
            assert!(matches!(answer, None | Some(Answer::Failed)), "{len}: {answer:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_message_does_not_panic(
            at in 0..80_usize,
            bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..40),
        ) {
            let mut message = response(0, Record::A, &[10, 0, 0, 1]);
            let at = at.min(message.len());
            message.splice(at.., bytes);
            query(Record::A).answer(&message);
        }
    }

    #[test]
    fn invalid_name_is_rejected() {
        for name in ["", ".", "a..b", &"a".repeat(64), &"a.".repeat(130)] {
            assert!(Query::new(1, name, Record::A).is_none(), "{name}");
        }
    }
}
