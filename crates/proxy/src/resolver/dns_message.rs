//! DNS queries and answers (RFC 1035, RFC 3596).
//!
//! hickory-proto, which serves the names of a tailnet, would add 18 crates to programs that use the
//! library without a tailnet. It also rejects answers for records that are not needed here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const HEADER_LEN: usize = 12;
/// Recursion desired.
const RD: u16 = 0x0100;
/// A response.
const QR: u16 = 0x8000;
/// Truncated.
const TC: u16 = 0x0200;
/// The maximum number of addresses that are read from an answer. A client hardly tries more.
const MAX_ADDRESSES: usize = 16;
const CLASS_IN: u16 = 1;
const OPCODE: u16 = 0x7800;
const LABEL_MAX: usize = 63;
const WIRE_NAME_MAX: usize = 255;
/// A length with these bits is a pointer (section 4.1.4).
const POINTER: u8 = 0xc0;

/// The record type of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Record {
    /// IPv4 addresses.
    A = 1,
    /// IPv6 addresses.
    Aaaa = 28,
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
    record: Record,
}

impl Query {
    /// A query for `name`, or `None` if that is not a valid name.
    pub fn new(id: u16, name: &str, record: Record) -> Option<Self> {
        let mut text = Vec::with_capacity(HEADER_LEN + name.len() + 6);
        for word in [id, RD, 1, 0, 0, 0] {
            text.extend_from_slice(&word.to_be_bytes());
        }
        for label in name.strip_suffix('.').unwrap_or(name).split('.') {
            let len = u8::try_from(label.len()).ok()?;
            if !(1..=LABEL_MAX).contains(&label.len()) {
                return None;
            }
            text.push(len);
            text.extend_from_slice(label.as_bytes());
        }
        text.push(0);
        if text.len() - HEADER_LEN > WIRE_NAME_MAX {
            return None;
        }
        text.extend_from_slice(&(record as u16).to_be_bytes());
        text.extend_from_slice(&CLASS_IN.to_be_bytes());
        Some(Self { text, record })
    }

    /// The message to send.
    pub fn as_bytes(&self) -> &[u8] {
        &self.text
    }

    /// Reads the answer. `None` if the message does not answer this query.
    pub fn answer(&self, message: &[u8]) -> Option<Answer> {
        let mut reader = Reader { message, at: 0 };
        let id = reader.word()?;
        let flags = reader.word()?;
        let [question_count, answer_count, _, _] =
            [reader.word()?, reader.word()?, reader.word()?, reader.word()?];
        let asked = self.text.get(HEADER_LEN..)?;
        let echoed = message.get(HEADER_LEN..HEADER_LEN + asked.len())?;
        let is_ours = id.to_be_bytes() == self.text[..2]
            && flags & (QR | OPCODE) == QR
            && question_count == 1
            && echoed.eq_ignore_ascii_case(asked);
        if !is_ours {
            return None;
        }
        if flags & TC != 0 {
            return Some(Answer::Truncated);
        }
        reader.at = HEADER_LEN + asked.len();
        Some(match flags & 0xf {
            0 => self.records(reader, answer_count).unwrap_or(Answer::Failed),
            3 => Answer::NoSuchName,
            _ => Answer::Failed,
        })
    }

    /// Reads all addresses of the answer section. A recursive server includes those at the end of a
    /// chain of aliases, and no other records of this type.
    fn records(&self, mut reader: Reader<'_>, count: u16) -> Option<Answer> {
        let mut addresses = Vec::new();
        let mut least = u32::MAX;
        for _ in 0..count {
            reader.skip_name()?;
            let [kind, class] = [reader.word()?, reader.word()?];
            let seconds = u32::from(reader.word()?) << 16 | u32::from(reader.word()?);
            let len = reader.word()?;
            let data = reader.take(len.into())?;
            least = least.min(seconds);
            if class == CLASS_IN && kind == self.record as u16 && addresses.len() < MAX_ADDRESSES {
                addresses.push(self.address(data)?);
            }
        }
        Some(Answer::Addresses(addresses, if count == 0 { 0 } else { least }))
    }

    fn address(&self, data: &[u8]) -> Option<IpAddr> {
        Some(match self.record {
            Record::A => Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?).into(),
            Record::Aaaa => Ipv6Addr::from(<[u8; 16]>::try_from(data).ok()?).into(),
        })
    }
}

struct Reader<'a> {
    message: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let taken = self.message.get(self.at..self.at.checked_add(len)?)?;
        self.at += len;
        Some(taken)
    }

    fn word(&mut self) -> Option<u16> {
        self.take(2)?.first_chunk().copied().map(u16::from_be_bytes)
    }

    /// Skips a name. Names in answers are not compared, so pointers are not followed.
    fn skip_name(&mut self) -> Option<()> {
        loop {
            match *self.take(1)?.first()? {
                0 => return Some(()),
                len if len & POINTER == POINTER => {
                    self.take(1)?;
                    return Some(());
                }
                len if len & POINTER == 0 => {
                    self.take(len.into())?;
                }
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(record: Record) -> Query {
        Query::new(0x1234, "www.Example.", record).unwrap()
    }

    /// An answer with an alias: a CNAME, then the address.
    fn response(flags: u16, record: Record, data: &[u8]) -> Vec<u8> {
        let mut text = query(record).text;
        text[2..4].copy_from_slice(&(QR | RD | flags).to_be_bytes());
        text[7] = 2;
        text.extend_from_slice(&[0xc0, 12, 0, 5, 0, 1, 0, 0, 1, 0, 0, 4, 1, b'a', 0xc0, 16]);
        text.extend_from_slice(&[1, b'a', 0xc0, 16, 0, record as u8, 0, 1, 0, 0, 0, 60]);
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
