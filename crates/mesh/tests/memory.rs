//! The memory that a coordinator's response takes, whatever it contains: at most four times the
//! longest frame. By default only shorter frames are tested. The longest ones take minutes without
//! optimization:
//!
//! ```text
//!   cargo test --release -p linerate-mesh --test memory -- --ignored --nocapture
//! ```

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use mesh::network_map::NetworkMap;
use tailnet::{
    map_messages::MapResponse,
    ts2021::{
        map_frames::{FrameReader, LONGEST},
        requests::MapHead,
    },
};

const NOW: Duration = Duration::from_secs(1_800_000_000);
/// The length of the pieces from the connection.
const PIECE: usize = 16 << 10;
/// More than the limit of any list.
const DIFFERENT: u32 = 60_000;

/// The system's allocator, which counts bytes, including the overhead of each block.
struct Counting;

static USED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn cost(layout: Layout) -> usize {
    (layout.size() + 8).next_multiple_of(16).max(32)
}

// SAFETY: all calls are forwarded to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = USED.fetch_add(cost(layout), Relaxed) + cost(layout);
        PEAK.fetch_max(used, Relaxed);
        // SAFETY: the caller's guarantees are forwarded.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        USED.fetch_sub(cost(layout), Relaxed);
        // SAFETY: the caller's guarantees are forwarded.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The tests run one at a time, because the allocator counts all of them.
static TURN: Mutex<()> = Mutex::new(());

/// Returns the maximum memory that a call adds.
fn peak(run: impl FnOnce()) -> usize {
    let before = USED.load(Relaxed);
    PEAK.store(before, Relaxed);
    run();
    PEAK.load(Relaxed) - before
}

/// Returns a response with a beginning, as many items as fit, and an end. In an item, `@` is
/// replaced by a number and `%` by a key.
fn longest([begin, item, end]: [&str; 3], length: usize) -> Vec<u8> {
    let numbered = |number: u32| {
        let key = format!("nodekey:{number:064x}");
        item.replace('@', &number.to_string()).replace('%', &key) + ","
    };
    let different = if item.contains(['@', '%']) { DIFFERENT } else { 1 };
    let items: String = (1..=different).map(numbered).collect();
    let mut text = begin.to_owned();
    while text.len() + items.len() + end.len() <= length {
        text.push_str(&items);
    }
    let rest = &items[..length.saturating_sub(text.len() + end.len())];
    text.push_str(&rest[..rest.rfind("},{").map_or(0, |at| at + 2)]);
    text.pop();
    (text + end).into_bytes()
}

/// Applies a frame to the map, in pieces. Returns whether all of it was readable.
fn take(map: &mut NetworkMap, frame: &[u8]) -> bool {
    let mut reader = FrameReader::default();
    let length = u32::try_from(frame.len()).expect("a frame is short enough");
    reader.handle_bytes(&length.to_le_bytes());
    let mut pieces = frame.chunks(PIECE).map(|piece| {
        reader.handle_bytes(piece);
        reader.poll_frame().expect("it can be unpacked")
    });
    let text = pieces.find_map(|text| text).expect("it is whole");
    let (head, response) = (MapHead::read(&text), MapResponse::read(&text));
    drop(text);
    let changes = map.apply(response.expect("it is JSON"), NOW);
    head.is_ok() && changes.bad.iter().all(|bad| bad.why.contains("left out"))
}

/// Returns zstd with uncompressed blocks (RFC 8878, section 3.1.1), of which a decoder stores the
/// last 64 MiB.
fn packed(text: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 16 << 3];
    let blocks = text.chunks(128 << 10);
    let last = blocks.len() - 1;
    for (number, block) in blocks.enumerate() {
        let header = u32::from(number == last) | u32::try_from(block.len()).expect("short") << 3;
        frame.extend_from_slice(&header.to_le_bytes()[..3]);
        frame.extend_from_slice(block);
    }
    frame
}

/// A peer that is much larger than its text.
const PEER: &str =
    r#"{"ID":@,"Key":"%","Addresses":["::/0"],"Tags":["","","","","","","","","",""]}"#;
/// The beginning of a peer with capabilities.
const CAPABILITIES: &str = concat!(
    r#"{"Peers":[{"ID":1,"Key":"nodekey:"#,
    "1111111111111111111111111111111111111111111111111111111111111111",
    r#"","Addresses":["::/0"],"CapMap":{"#
);

/// Lists of items that become larger than their text: the beginning, the repeated item, the end;
/// and the memory limit of the stored list, in MiB.
const LISTS: [([&str; 3], usize); 3] = [
    ([r#"{"Peers":["#, PEER, "]}"], 128),
    ([r#"{"PeersRemoved":["#, "1", "]}"], 0),
    ([r#"{"PacketFilter":["#, "{}", "]}"], 192),
];

/// Fields that are limited by the length of their text, with the longest that is read.
const FIELDS: [([&str; 3], usize); 8] = [
    ([CAPABILITIES, r#""@":{"":{}}"#, "}}]}"], 2 << 20),
    ([r#"{"PeersChangedPatch":[{"NodeID":1,"Capabilities":["#, r#""""#, "]}]}"], 256 << 10),
    ([r#"{"OnlineChange":{"#, r#""@":true"#, "}}"], 2 << 20),
    ([r#"{"Node":{"Tags":["#, r#""""#, "]}}"], 1 << 20),
    ([r#"{"DERPMap":{"Regions":{"1":{"Nodes":["#, "{}", "]}}}}"], 256 << 10),
    ([r#"{"DNSConfig":{"ExtraRecords":["#, "{}", "]}}"], 1 << 20),
    ([r#"{"Health":["#, r#""""#, "]}"], 64 << 10),
    ([r#"{"ControlDialPlan":{"Candidates":["#, "{}", "]}}"], 64 << 10),
];

#[test]
fn worst_json_takes_four_times_its_length_in_addition_to_stored_data() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for (worst, stored) in LISTS {
        let text = longest(worst, 2 << 20);
        let cost = peak(|| _ = take(&mut NetworkMap::default(), &text));
        println!("{cost} bytes for {}: {}", text.len(), worst.concat());
        assert!(cost <= 4 * text.len() + (stored << 20), "{cost} bytes for {}", worst.concat());
    }
}

#[test]
#[ignore = "takes minutes; see the module"]
fn worst_json_of_the_longest_frame_takes_at_most_four_times_its_length() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for (worst, _) in LISTS {
        let text = longest(worst, LONGEST - (8 << 10));
        for frame in [packed(&text), text] {
            let cost = peak(|| _ = take(&mut NetworkMap::default(), &frame));
            println!("{:.2} frames: {}", cost as f64 / LONGEST as f64, worst.concat());
            assert!(cost <= 4 * LONGEST, "{cost} bytes for {}", worst.concat());
        }
    }
}

#[test]
fn single_fields_take_at_most_two_longest_frames() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut sum = 0;
    for (worst, bound) in FIELDS {
        let text = longest(worst, bound);
        let mut is_read = false;
        let cost = peak(|| is_read = take(&mut NetworkMap::default(), &text));
        println!("{cost} bytes for {}: {}", text.len(), worst.concat());
        assert!(is_read, "{}", worst.concat());
        sum += cost;
    }
    assert!(sum <= 2 * LONGEST, "{sum} bytes");
}

#[test]
fn stored_data_of_many_responses_takes_at_most_four_frames() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut map = NetworkMap::default();
    let before = USED.load(Relaxed);
    let large = |number: u32| {
        let key = format!("nodekey:{number:064x}");
        PEER.replace('@', &number.to_string()).replace('%', &key)
    };
    for part in 0..12 {
        let peers: Vec<String> = (part * 10_000..(part + 1) * 10_000).map(large).collect();
        let rules = vec![r#"{"SrcIPs":["","","",""]}"#; 100_000].join(",");
        let users: Vec<String> =
            (0..20_000).map(|user| format!(r#"{{"ID":{}}}"#, part * 20_000 + user)).collect();
        let text = format!(
            r#"{{"PeersChanged":[{}],"PacketFilters":{{"{part}":[{rules}]}},"UserProfiles":[{}]}}"#,
            peers.join(","),
            users.join(","),
        );
        take(&mut map, text.as_bytes());
    }
    let stays = USED.load(Relaxed) - before;
    println!("{} bytes, {} peers", stays, map.peers().len());
    assert!(map.peers().len() > 40_000 && stays <= 4 * LONGEST, "{stays} bytes stay");
}
