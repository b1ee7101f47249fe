//! Limits of accepted data and of announced windows.

use super::*;
use crate::budget::{CHUNK, FIRST};

const WINDOW: u32 = 64 * 1024;
/// Memory limit of the budget, in bytes.
const LIMIT: usize = 64 * CHUNK;

/// A receiver with sequence numbers that soon wrap.
struct Stream {
    rx: Receiver,
    first: Seq,
}

impl Stream {
    fn new(budget: &Budget) -> Self {
        let mut rx = Receiver::new(1 << 20, budget.clone());
        rx.begin(Seq(u32::MAX - 100));
        Self { first: rx.next(), rx }
    }

    fn take(&mut self, at: u32, len: usize) -> Arrival {
        self.rx.receive(self.first + at, &Payload::Whole(&vec![7; len]))
    }
}

fn stream() -> Stream {
    Stream::new(&Budget::new(LIMIT))
}

/// A buffer that uses so large a part of the budget that memory is short.
fn shortage(budget: &Budget) -> Ring {
    let mut other = Ring::new(budget.clone());
    other.push(&vec![0; 50 * CHUNK]);
    assert!(budget.is_short());
    other
}

#[test]
fn data_past_the_window_is_not_accepted() {
    for end in [None, Some(100_000)] {
        let mut stream = stream();
        if let Some(end) = end {
            stream.rx.finish(stream.first + end);
        }
        stream.take(0, 100_000);
        assert_eq!(stream.rx.readable(), WINDOW as usize);
        assert_eq!(stream.take(WINDOW, 1), Arrival::AckNow);
        assert_eq!(stream.rx.readable(), WINDOW as usize);
    }
}

#[test]
fn the_number_of_out_of_order_ranges_is_bounded() {
    let mut stream = stream();
    for number in 1..=MAX_OUT_OF_ORDER as u32 {
        assert_eq!(stream.take(2 * number, 1), Arrival::AckNow);
    }
    assert_eq!(stream.take(2 * MAX_OUT_OF_ORDER as u32 + 2, 1), Arrival::Refused);
    assert_eq!(stream.take(0, 2), Arrival::AckNow, "what is missing is taken");
    assert_eq!(stream.rx.readable(), 3);
}

#[test]
fn while_memory_is_short_out_of_order_data_is_refused() {
    let budget = Budget::new(LIMIT);
    let mut stream = Stream::new(&budget);
    let other = shortage(&budget);
    assert_eq!(stream.take(10, 10), Arrival::Refused);
    assert_eq!(stream.take(0, 10), Arrival::InOrder);
    drop(other);
    assert_eq!(stream.take(20, 10), Arrival::AckNow);
}

#[test]
fn an_announced_window_does_not_shrink_when_memory_becomes_short() {
    let budget = Budget::new(LIMIT);
    let mut stream = Stream::new(&budget);
    let offered = stream.rx.offered();
    let _other = shortage(&budget);
    assert_eq!(u32::from(stream.rx.offer(1000)) << stream.rx.scale(), WINDOW);
    assert_eq!(stream.rx.offered(), offered);
}

#[test]
fn a_scaled_window_is_rounded_down() {
    let mut stream = stream();
    stream.take(0, 10);
    let scale = stream.rx.scale();
    let rest = (WINDOW - 10) % (1 << scale);
    assert_ne!(rest, 0);
    assert_eq!(u32::from(stream.rx.offer(1000)) << scale, WINDOW - 10 - rest);
}

#[test]
fn the_first_fin_determines_the_end_unless_later_data_has_arrived() {
    let mut out_of_order = stream();
    out_of_order.take(100, 10);
    out_of_order.rx.finish(out_of_order.first + 50);
    out_of_order.take(0, 50);
    assert!(!out_of_order.rx.has_ended(), "later bytes have arrived");

    let mut twice = stream();
    for end in [50, 80] {
        twice.rx.finish(twice.first + end);
    }
    twice.take(0, 80);
    assert_eq!((twice.rx.readable(), twice.rx.has_ended()), (50, true));
}

#[test]
fn out_of_order_data_is_dropped_for_missing_bytes_if_memory_is_used_up() {
    let bytes: Vec<u8> = (0..CHUNK + 1000).map(|n| (n % 251) as u8).collect();
    let budget = Budget::new(LIMIT);
    let mut receiver = Receiver::new(1 << 20, budget.clone());
    receiver.begin(Seq(0));
    let first = receiver.next();
    let out_of_order = receiver.receive(first + CHUNK as u32, &Payload::Whole(&bytes[CHUNK..]));
    assert_eq!((out_of_order, budget.used()), (Arrival::AckNow, CHUNK));
    budget.charge(LIMIT);
    let (mut read, now) = (Vec::new(), Time::new(std::time::Duration::ZERO));
    for _ in 0..=CHUNK / FIRST {
        let at = read.len();
        let end = bytes.len().min(at + 1000);
        let arrival = receiver.receive(first + at as u32, &Payload::Whole(&bytes[at..end]));
        assert_ne!(arrival, Arrival::Refused, "{at}");
        let mut to = vec![0; receiver.readable()];
        assert!(receiver.read(&mut to, now) > 0);
        read.extend(to);
    }
    assert!(!receiver.has_blocks(), "dropped data is not acknowledged");
    assert_eq!(read, bytes[..read.len()]);
    assert!(read.len() > CHUNK);
    assert_eq!(budget.used(), LIMIT);
}
