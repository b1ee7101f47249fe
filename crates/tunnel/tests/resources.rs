//! Checks that an idle tunnel sleeps, and that a dropped one releases its threads, files and keys. The
//! test has its own process, because it inspects the whole process.
#![expect(clippy::unwrap_used, reason = "a test ends at the first error")]

#[path = "tunnels/tunnel_pair.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod tunnel_pair;

use std::{
    fs,
    io::{Read, Seek, SeekFrom},
    thread,
    time::Duration,
};

use getrandom::{SysRng, rand_core::TryRng};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    runtime::{Builder, Runtime},
};
use tunnel::{
    Config, PrivateKey, Tunnel,
    tailnet::{JoinError, Member, Options},
};
use tunnel_pair::{A, B, Pair, at, config, in_time, peer};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// These run in sequence, because each inspects the whole process.
#[test]
fn idle_tunnel_sleeps_and_a_dropped_one_leaves_nothing() {
    idle_threads_sleep();
    threads_and_files_end();
    threads_and_files_of_tailnet_nodes_end();
    keys_are_wiped();
}

fn idle_threads_sleep() {
    let runtime = runtime();
    let held = runtime.block_on(async {
        let pair = Pair::start().await;
        let listener = pair.b.listen(at(B[0], 80)).unwrap();
        let dialed = async { tokio::join!(pair.a.connect(at(B[0], 80)), listener.accept()) };
        let (near, far) = in_time(dialed).await;
        let (mut near, mut far) = (near.unwrap(), far.unwrap().0);
        near.write_all(b"?").await.unwrap();
        in_time(far.read_exact(&mut [0])).await.unwrap();
        (pair, listener, near, far)
    });
    // The time until the bytes are acknowledged, the handshake is confirmed and a post-quantum secret is
    // agreed on depends on the load. Threads with a timer would wake in every interval of two seconds.
    let mut woken = Vec::new();
    while woken.last().is_none_or(|woken| *woken > 20) {
        assert!(woken.len() < 10, "wake-ups of idle threads: {woken:?}");
        let before = wakes();
        thread::sleep(Duration::from_secs(2));
        woken.push(wakes() - before);
    }
    drop(held);
}

fn threads_and_files_end() {
    let runtime = runtime();
    let before = Usage::now();
    runtime.block_on(async {
        for _ in 0..5 {
            let Pair { a, b } = Pair::start().await;
            let listener = b.listen(at(B[0], 80)).unwrap();
            let dialed = async { tokio::join!(a.connect(at(B[0], 80)), listener.accept()) };
            let (near, far) = in_time(dialed).await;
            assert!(Usage::now().threads.len() >= before.threads.len() + 8);
            drop((a, b));
            // Sockets of the tunnels still exist.
            before.assert_unchanged();
            drop((near, far));
        }
        // The peer does not answer.
        let without_peer = peer(1, B).endpoint("192.0.2.1", 9);
        let without_peer = Tunnel::start(&config(0, A).peer(without_peer)).await.unwrap();
        let dialing =
            tokio::time::timeout(Duration::from_millis(20), without_peer.connect(at(B[0], 80)));
        assert!(dialing.await.is_err());
        drop(without_peer);
        before.assert_unchanged();
    });
}

fn threads_and_files_of_tailnet_nodes_end() {
    let state = std::env::temp_dir().join(format!("linerate-member-{}", std::process::id()));
    // The coordinator does not exist.
    let options = || Options::new("http://127.0.0.1:1", &state);
    let with_short_timeout = || options().auth_key("key").timeout(Duration::from_millis(300));
    let runtime = runtime();
    let before = Usage::now();
    runtime.block_on(async {
        for _ in 0..3 {
            let without_key = in_time(Member::join(options())).await;
            assert!(matches!(without_key, Err(JoinError::NeedsLogin)), "{without_key:?}");
            before.assert_unchanged();
            let both = in_time(async {
                tokio::join!(Member::join(with_short_timeout()), Member::join(with_short_timeout()))
            });
            let (Err(one), Err(other)) = both.await else { panic!("a join succeeded") };
            let (late, refused) =
                if matches!(one, JoinError::InUse(_)) { (other, one) } else { (one, other) };
            assert!(matches!(late, JoinError::TimedOut(_)), "{late:?}");
            assert!(matches!(refused, JoinError::InUse(_)), "{refused:?}");
            before.assert_unchanged();
        }
    });
    fs::remove_dir_all(&state).unwrap();
}

/// Searches all writable memory for a key. The search compares with the complement of the key, so that it
/// does not store a copy of the key itself.
fn keys_are_wiped() {
    const NOWHERE: [String; 0] = [];
    let mut complement = [0; 32];
    SysRng.try_fill_bytes(&mut complement).unwrap();
    // The key is stored clamped (RFC 7748 section 5).
    complement[0] |= 7;
    complement[31] = (complement[31] | 128) & !64;
    let tunnel = started(&complement);
    assert_ne!(locations_of(&complement), NOWHERE, "the search finds a key while there is one");
    drop(tunnel);
    clean_stack();
    assert_eq!(locations_of(&complement), NOWHERE);
}

#[inline(never)]
fn started(complement: &[u8; 32]) -> Tunnel {
    let key = PrivateKey::from_bytes(&complement.map(|byte| !byte));
    let to_b = peer(1, B).endpoint("127.0.0.1", 9);
    let config = Config::new(key).address(A[0].parse().unwrap()).peer(to_b);
    runtime().block_on(Tunnel::start(&config)).unwrap()
}

/// Overwrites the stack frames of earlier calls.
#[inline(never)]
fn clean_stack() {
    let mut bytes = [0; 256 * 1024];
    bytes.fill(0xaa_u8);
    std::hint::black_box(&mut bytes);
}

/// The places of the key with this complement.
fn locations_of(complement: &[u8; 32]) -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut memory = fs::File::open("/proc/self/mem").unwrap();
    let mut locations_of = Vec::new();
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let (begin, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [begin, end] = [begin, end].map(|text| u64::from_str_radix(text, 16).unwrap());
        for at in (begin..end).step_by(4096) {
            // A key that spans two pages is unlikely and not found.
            let mut page = [0; 4096];
            memory.seek(SeekFrom::Start(at)).unwrap();
            if memory.read_exact(&mut page).is_err() || page == [0; 4096] {
                continue;
            }
            page.iter_mut().for_each(|byte| *byte = !*byte);
            let places = page.windows(32).enumerate().filter(|(_, window)| window == complement);
            locations_of
                .extend(places.map(|(place, _)| format!("{:x} in {line}", at + place as u64)));
            page.fill(0);
            std::hint::black_box(&mut page);
        }
    }
    locations_of
}

/// The resources of this process: the names of its threads, and the number of its files.
#[derive(Debug, PartialEq)]
struct Usage {
    threads: Vec<String>,
    files: usize,
}

impl Usage {
    fn now() -> Self {
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).ok();
        let mut threads: Vec<String> = tasks.filter_map(|task| name(task.unwrap())).collect();
        threads.sort();
        Self { threads, files: fs::read_dir("/proc/self/fd").unwrap().count() }
    }

    /// Asserts that the process has these resources. The kernel lists a joined thread until it has
    /// released it, which is after it woke the joining thread (`mm_release` is before `release_task` in
    /// kernel/exit.c). The delay depends on the load.
    #[track_caller]
    fn assert_unchanged(&self) {
        let files = Self::now().files;
        let is_released = |_| {
            let released = Self::now().threads == self.threads;
            if !released {
                thread::sleep(Duration::from_millis(10));
            }
            released
        };
        let _ = (0..200).any(is_released);
        assert_eq!(Self { files, ..Self::now() }, *self);
    }
}

/// The number of voluntary context switches of all threads except this one.
fn wakes() -> u64 {
    let this = own_number();
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let others = tasks.filter(|task| !task.ends_with(&this));
    let count = |task: std::path::PathBuf| {
        let status = fs::read_to_string(task.join("status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches:"));
        line.unwrap().split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    others.map(count).sum()
}

/// The ID of this thread in `/proc`.
fn own_number() -> String {
    let link = fs::read_link("/proc/thread-self").unwrap();
    link.file_name().unwrap().to_string_lossy().into_owned()
}
