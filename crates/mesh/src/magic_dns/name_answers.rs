//! Answers to queries.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_proto::{
    op::{Message, MessageType, OpCode, ResponseCode},
    rr::{DNSClass, RData, RecordType, rdata::PTR},
};

use super::{
    Answer, Forward, HostRecord, Names, Resolver, SERVICE_IPV4, SERVICE_IPV6, Transport,
    fqdn::Fqdn,
    reply::{self, Reply},
    reverse::{self, Reverse},
};

/// The name of [`SERVICE_IPV4`], as in stock nodes.
const SERVICE_NAME: &str = "magicdns.localhost-tailscale-daemon";
/// The prefix of IPv4 networks behind routers. The last 64 bits are the site's number and the IPv4
/// address (tailscale `net/tsaddr`).
const VIA: Ipv6Addr = Ipv6Addr::new(0xfd7a, 0x115c, 0xa1e0, 0xb1a, 0, 0, 0, 0);

/// The result of a look-up.
enum Found {
    /// The name exists. The records have the requested type; there may be none.
    Data(Vec<RData>),
    NoName,
    /// Another resolver may have the name.
    Elsewhere,
}

impl Names {
    /// Returns the answer to a query.
    pub fn answer(&self, query: &[u8], transport: Transport) -> Answer {
        let Ok(request) = Message::from_vec(query) else { return reply::format_error(query) };
        if request.metadata.message_type != MessageType::Query {
            return Answer::Ignore;
        }
        let reply = Reply::new(&request, transport);
        if request.metadata.op_code != OpCode::Query {
            return reply.refuse(ResponseCode::NotImp);
        }
        if request.edns.as_ref().is_some_and(|edns| edns.version() > 0) {
            return reply.refuse(ResponseCode::BADVERS);
        }
        // Several questions are not valid (RFC 9619).
        let [question] = &request.queries[..] else { return reply.refuse(ResponseCode::FormErr) };
        if !matches!(question.query_class(), DNSClass::IN | DNSClass::ANY) {
            return reply.refuse(ResponseCode::Refused);
        }
        let Some(name) = Fqdn::from_name(question.name()) else {
            return reply.refuse(ResponseCode::FormErr);
        };
        match self.find(&name, question.query_type()) {
            Found::Data(data) => reply.data(data, || self.authority(&name)),
            Found::NoName => reply.no_name(&self.authority(&name)),
            Found::Elsewhere => match self.resolvers(&name) {
                [] => reply.refuse(ResponseCode::ServFail),
                resolvers => Forward::new(&request, resolvers, reply.limit())
                    .map_or_else(|| reply.refuse(ResponseCode::FormErr), Answer::Forward),
            },
        }
    }

    fn find(&self, name: &Fqdn, kind: RecordType) -> Found {
        // RFC 7686, section 2: a name below onion never goes out.
        if name.labels().last() == Some(b"onion") || reverse::is_bonjour(name) {
            return Found::NoName;
        }
        if let Some(found) = self.find_reverse(name, kind) {
            return found;
        }
        if Fqdn::parse(SERVICE_NAME).as_ref() == Some(name) {
            return addresses(&[SERVICE_IPV4.into(), SERVICE_IPV6.into()], kind);
        }
        if let Some(known) = self.host(name) {
            return addresses(&known.addresses, kind);
        }
        if let Some(address) = self.via(name) {
            return addresses(&[address.into()], kind);
        }
        match self.zone(name) {
            None => Found::Elsewhere,
            // The top of a zone and its inner names exist (RFC 8020).
            Some(zone) if zone == name => {
                let soa = Some(zone).filter(|_| kind == RecordType::SOA).and_then(reply::soa);
                Found::Data(soa.map(RData::SOA).into_iter().collect())
            }
            Some(_) => Found::NoName,
        }
    }

    /// Answers a reverse name; `None` for other names, and for addresses of other resolvers.
    fn find_reverse(&self, name: &Fqdn, kind: RecordType) -> Option<Found> {
        let reverse = reverse::parse(name)?;
        let known = match reverse {
            Reverse::Address(IpAddr::V4(SERVICE_IPV4)) => Fqdn::parse(SERVICE_NAME),
            Reverse::Address(IpAddr::V6(SERVICE_IPV6)) => Fqdn::parse(SERVICE_NAME),
            Reverse::Address(address) => self.reverse.get(&address).cloned(),
            // Some resolvers query each label of a name (RFC 9156).
            Reverse::Inner if self.zone(name).is_some_and(|zone| zone != name) => {
                return Some(Found::Data(Vec::new()));
            }
            Reverse::Inner | Reverse::Malformed => None,
        };
        let host = known?.to_name().ok()?;
        let asked = matches!(kind, RecordType::PTR | RecordType::ANY);
        Some(Found::Data(asked.then_some(RData::PTR(PTR(host))).into_iter().collect()))
    }

    fn host(&self, name: &Fqdn) -> Option<&HostRecord> {
        if let Some(known) = self.hosts.get(name) {
            return Some(known);
        }
        // A single label is the name of a node, as with a search domain.
        let full = self.suffix.as_ref().filter(|_| name.labels().count() == 1);
        if let Some(known) = full.and_then(|suffix| self.hosts.get(&name.below(suffix)?)) {
            return Some(known);
        }
        let above = name.ancestors().skip(1).filter_map(|parent| self.hosts.get(parent));
        above.into_iter().find(|known| known.subdomains)
    }

    /// Returns the address of a name such as `192-168-1-2-via-7`, alone or below the suffix.
    fn via(&self, name: &Fqdn) -> Option<Ipv6Addr> {
        let label = std::str::from_utf8(name.labels().next()?).ok()?;
        let (address, site) = label.split_once("-via-")?;
        let parent = name.parent()?;
        let stock = ["ts.net", "tailscale.net"].into_iter().filter_map(Fqdn::parse);
        let ours = stock.chain(self.suffix.clone()).any(|zone| parent.within(&zone));
        if parent != Fqdn::default() && !ours {
            return None;
        }
        let address: Ipv4Addr = address.replace('-', ".").parse().ok()?;
        let site = match site.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok()?,
            None => site.parse().ok()?,
        };
        let low = u64::from(site) << 32 | u64::from(address.to_bits());
        Some(Ipv6Addr::from_bits(VIA.to_bits() | u128::from(low)))
    }

    /// Returns the zone of a name if this node is authoritative for it.
    fn zone(&self, name: &Fqdn) -> Option<&Fqdn> {
        let longest = name.ancestors().find_map(|suffix| self.routes.get_key_value(suffix));
        longest.filter(|(_, resolvers)| resolvers.is_empty()).map(|(zone, _)| zone)
    }

    /// Returns the resolvers for a name.
    fn resolvers(&self, name: &Fqdn) -> &[Resolver] {
        let longest = name.ancestors().find_map(|suffix| self.routes.get(suffix));
        longest.unwrap_or(&self.defaults)
    }

    /// Returns the zone of the SOA record in a negative answer; the name itself if no zone
    /// matches.
    fn authority(&self, name: &Fqdn) -> Fqdn {
        self.zone(name).unwrap_or(name).clone()
    }
}

fn addresses(all: &[IpAddr], kind: RecordType) -> Found {
    let of_kind = |address: &&IpAddr| match kind {
        RecordType::A => address.is_ipv4(),
        RecordType::AAAA => address.is_ipv6(),
        RecordType::ANY => true,
        _ => false,
    };
    Found::Data(all.iter().filter(of_kind).map(|address| RData::from(*address)).collect())
}
