//! A device under load demands that senders prove their addresses.

use wg::{
    DropReason,
    constants::{COOKIE_LATENCY, COOKIE_LIFETIME, HANDSHAKE_BURST, REKEY_TIMEOUT},
};

use crate::support::*;

/// Runs for `seconds` with a host under load.
pub(crate) fn run_loaded(world: &mut World, host: Id, seconds: u64) {
    for _ in 0..seconds * 2 {
        world.act(host, |host, now| host.control.set_under_load(now.time));
        world.run(millis(500));
    }
}

pub(crate) fn has_mac2(message: &Sent) -> bool {
    message.bytes[message.bytes.len() - 16..] != [0; 16]
}

#[test]
fn initiator_proves_its_address_to_a_responder_under_load() {
    let mut world = World::pair(1);
    let number = world.send(A, B);
    run_loaded(&mut world, B, 2);
    assert_eq!(world.sent(B, What::CookieReply).len(), 1);
    assert!(world.sent(B, What::Response).is_empty());
    assert_eq!(world.hosts[B].dropped(DropReason::HandshakeCookieSent), 1);
    assert_eq!(
        world.sent(A, What::Initiation).len(),
        1,
        "a cookie reply causes no early retransmission"
    );
    run_loaded(&mut world, B, 4);
    assert_eq!(world.received(B), [number]);
    let initiations = world.sent(A, What::Initiation);
    assert_eq!(initiations.iter().map(|sent| has_mac2(sent)).collect::<Vec<_>>(), [false, true]);
    assert!(initiations[1].at.since(initiations[0].at) >= REKEY_TIMEOUT);
    assert_eq!(world.sent(B, What::CookieReply).len(), 1);
}

#[test]
fn responder_proves_its_address_to_an_initiator_under_load() {
    let mut world = World::pair(2);
    let number = world.send(A, B);
    run_loaded(&mut world, A, 6);
    assert_eq!(world.sent(A, What::CookieReply).len(), 1);
    assert_eq!(world.sent(B, What::Response).len(), 2);
    assert!(has_mac2(world.sent(B, What::Response)[1]));
    assert_eq!(world.received(B), [number]);
}

#[test]
fn no_cookie_is_demanded_one_second_after_the_load() {
    let mut world = World::pair(3);
    world.act(B, |host, now| host.control.set_under_load(now.time));
    world.run(secs(1));
    world.send(A, B);
    world.run(secs(1));
    assert!(world.sent(B, What::CookieReply).is_empty());
    assert_eq!(world.received(B).len(), 1);
}

#[test]
fn cookie_is_not_used_after_its_lifetime() {
    let mut world = World::pair(4);
    world.send(A, B);
    run_loaded(&mut world, B, 1);
    let got = world.times(B, What::CookieReply)[0] + LINK.delay;
    world.gate(|_| false);
    for _ in 0..150 {
        world.send(A, B);
        world.run(secs(1));
    }
    let usable = COOKIE_LIFETIME - COOKIE_LATENCY;
    let times = world.times(A, What::Initiation);
    let mut after = 0;
    for (initiation, at) in world.sent(A, What::Initiation).iter().zip(times).skip(1) {
        assert_eq!(has_mac2(initiation), at - got < usable, "at {at:?}");
        after += usize::from(at - got >= usable);
    }
    assert!(after > 2);
}

#[test]
fn cookie_of_an_old_secret_is_refused() {
    let mut world = World::pair(5);
    world.send(A, B);
    run_loaded(&mut world, B, 1);
    world.gate(|sent| sent.what != What::Initiation);
    run_loaded(&mut world, B, 6);
    let stamped = world.sent(A, What::Initiation)[1].clone();
    assert!(has_mac2(&stamped));
    run_loaded(&mut world, B, 120);
    let replies = world.sent(B, What::CookieReply).len();
    world.inject(&stamped.bytes, stamped.from, B);
    run_loaded(&mut world, B, 1);
    assert_eq!(world.sent(B, What::CookieReply).len(), replies + 1, "it needs a new cookie");
    assert!(world.sent(B, What::Response).is_empty());
}

/// Known bug elsewhere: a cookie that does not cover the port.
#[test]
fn cookie_is_valid_for_one_address_and_port_only() {
    for other in ["192.0.2.1:51821", "192.0.2.77:51820", "[2001:db8::1]:51820"] {
        let mut world = World::pair(6);
        world.send(A, B);
        run_loaded(&mut world, B, 1);
        world.gate(|sent| sent.what != What::Initiation);
        run_loaded(&mut world, B, 6);
        let stamped = world.sent(A, What::Initiation)[1].clone();
        world.inject(&stamped.bytes, other.parse().unwrap(), B);
        run_loaded(&mut world, B, 1);
        assert_eq!(world.hosts[B].dropped(DropReason::HandshakeCookieSent), 2);
        assert!(world.sent(B, What::Response).is_empty(), "{other}");
        world.inject(&stamped.bytes, stamped.from, B);
        run_loaded(&mut world, B, 1);
        assert_eq!(world.sent(B, What::Response).len(), 1);
    }
}

/// Known bug elsewhere: one global rate limiter that puts every peer in cookie mode.
#[test]
fn flood_with_a_valid_cookie_is_limited_to_its_source() {
    let mut world = World::new(7);
    let (a, b, flooder) = (world.add_host(), world.add_host(), world.add_host());
    for (one, other) in [(a, b), (b, a), (b, flooder), (flooder, b)] {
        world.introduce(one, other);
    }
    world.send(flooder, b);
    let number = world.send(a, b);
    run_loaded(&mut world, b, 1);
    // Both have cookies now. The next initiation of each is dropped.
    world.gate(|sent| sent.what != What::Initiation);
    run_loaded(&mut world, b, 6);
    let stamped = world.sent(flooder, What::Initiation)[1].clone();
    let flooding = stamped.from;
    assert!(has_mac2(&stamped));
    world.gate(move |sent| sent.from != flooding);
    for _ in 0..6000 {
        world.inject(&stamped.bytes, flooding, b);
        world.act(b, |host, now| host.control.set_under_load(now.time));
        world.run(millis(1));
    }
    assert_eq!(world.received(b), [number], "the other source succeeds during the flood");
    let worked = 6001 - world.hosts[b].dropped(DropReason::HandshakeRateLimited);
    let allowed = u64::from(HANDSHAKE_BURST) + 6 * 20;
    assert!((allowed - 5..=allowed + 5).contains(&worked), "{worked}");
}

/// Known bug elsewhere: one global rate limiter that puts every peer in cookie mode.
#[test]
fn source_with_a_cookie_succeeds_during_a_flood_without_cookies() {
    let mut world = World::pair(8);
    let number = world.send(A, B);
    let first = world.sent(A, What::Initiation)[0].bytes.clone();
    for round in 0..6000u32 {
        let source = ([198, 51, (round >> 8) as u8, round as u8], 1024).into();
        world.inject(&first, source, B);
        world.act(B, |host, now| host.control.set_under_load(now.time));
        world.run(millis(1));
    }
    assert_eq!(world.received(B), [number]);
    assert_eq!(world.sent(B, What::Response).len(), 1, "no handshake was computed for the flood");
}

/// Known bug elsewhere: roaming on cookie replies.
#[test]
fn a_cookie_reply_moves_no_endpoint() {
    let mut world = World::pair(9);
    let (b_key, b_address) = (world.key(B), world.hosts[B].address);
    world.gate(|sent| sent.what != What::CookieReply);
    world.send(A, B);
    run_loaded(&mut world, B, 1);
    let reply = world.sent(B, What::CookieReply)[0].bytes.clone();
    world.inject(&reply, "203.0.113.9:9".parse().unwrap(), A);
    world.run(secs(5));
    assert_eq!(world.hosts[A].state(&b_key).endpoint, Some(b_address));
    let second = world.sent(A, What::Initiation)[1];
    assert_eq!(second.to, b_address);
    assert!(has_mac2(second), "the cookie itself is taken: it is sealed for us");
}

#[test]
fn a_cookie_reply_to_no_message_of_ours_is_refused() {
    let mut world = World::pair(10);
    world.gate(|sent| sent.what != What::CookieReply);
    world.send(A, B);
    run_loaded(&mut world, B, 1);
    let reply = world.sent(B, What::CookieReply)[0].bytes.clone();
    let from = world.hosts[B].address;

    let mut forged = reply.clone();
    forged[40] ^= 1;
    world.inject(&forged, from, A);
    let mut unknown = reply.clone();
    unknown[4] ^= 1;
    world.inject(&unknown, from, A);
    world.run(millis(1));
    assert_eq!(world.hosts[A].dropped(DropReason::HandshakeForged), 1);
    assert_eq!(world.hosts[A].dropped(DropReason::HandshakeUnexpected), 1);

    world.inject(&reply, from, A);
    world.inject(&reply, from, A);
    world.run(millis(1));
    assert_eq!(world.hosts[A].dropped(DropReason::HandshakeForged), 2, "one message, one reply");
}
