//! A peer as `linerate -f --sandbox off INTERFACE` runs it, for the programs `filtered` and
//! `unfiltered`. The difference between them is the cost of a filter.
//!
//! ```text
//! bench --binary off=target/release/unfiltered --binary 1000=target/release/filtered
//! ```

use std::{
    env,
    net::{IpAddr, Ipv4Addr},
    num::NonZero,
    process::ExitCode,
    thread,
};

use packet::filter::{AddressRange, Destination, Policy, Rule};
use process::{
    Resources,
    interface::{Options, run},
};

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Runs a peer with an optional filter until it is stopped.
pub fn peer(filter: Option<Policy>) -> ExitCode {
    // The rig starts it with the options of linerate, which this program ignores.
    let Some(name) = env::args().skip(1).find(|argument| !argument.starts_with('-')) else {
        eprintln!("usage: filtered [-f] INTERFACE");
        return ExitCode::from(2);
    };
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let resources = Resources { cores, ..Resources::default() };
    let options = Options { name, resources, filter, ..Options::default() };
    match run(options, || {}) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("filtered: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// `count` rules. The last one accepts everything; the others match nothing that the bench
/// sends.
pub fn policy(count: u16) -> Policy {
    let everywhere = [AddressRange::V4, AddressRange::V6];
    let to = |ports: std::ops::RangeInclusive<u16>| {
        everywhere.map(|addresses| Destination { addresses, ports: ports.clone() }).to_vec()
    };
    let stranger = |number: u16| {
        let address = Ipv4Addr::from_bits(0x6440_0000 + 2 * u32::from(number));
        AddressRange::from(IpAddr::from(address))
    };
    let strangers = (1..count).map(|number| Rule {
        protocols: vec![TCP, UDP],
        sources: vec![stranger(number)],
        destinations: to(1_000 + number..=10_000 + number),
    });
    let all = Rule {
        protocols: vec![TCP, UDP],
        sources: everywhere.into(),
        destinations: to(0..=u16::MAX),
    };
    Policy {
        local: everywhere.into(),
        rules: strangers.chain([all]).collect(),
        ..Policy::default()
    }
}
