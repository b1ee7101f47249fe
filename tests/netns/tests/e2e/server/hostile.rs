//! Attacks on the server: other clients are unaffected, and the server's memory is bounded. Two
//! nodes exchange packets through its relay meanwhile.

mod attacker;
mod memory;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use netns::{Family, Host, Member, MemberKind, Nat, Pinging, Random, Tailnet, Uplink, eventually};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use self::attacker::{Attacker, machine, post, registration};
use super::{PATIENCE, join, number, start};

/// Limit of the growth of the server's anonymous memory, in bytes. The largest numbers of
/// connections here, 1,500 that register and 4,000 silent ones, take 85 to 120 MB.
const BOUND: u64 = 160 << 20;
/// Highest loss of pings through the relay, in percent.
const LOSS: usize = 1;

struct Attacked {
    tailnet: Tailnet,
    members: [Member; 2],
    attacker: Host,
    before: u64,
}

fn attacked_network() -> Option<Attacked> {
    let tailnet = start()?;
    let members = [("one", MemberKind::Tailscaled), ("other", MemberKind::Linerate)];
    let members = members.map(|(name, kind)| {
        let host = tailnet.host(name, Uplink::Behind(Nat::WithoutUdp));
        Member::join(&tailnet, host, kind, "")
    });
    members[0].reaches(&members[1], Family::V4);
    let attacker = tailnet.host("attacker", Uplink::Switch);
    let before = memory(&tailnet);
    Some(Attacked { tailnet, members, attacker, before })
}

impl Attacked {
    /// Attacks while pings pass the relay and another node joins.
    fn attack<F: Future<Output = ()>>(&self, attack: impl FnOnce(Attacker) -> F + Send) {
        let target = format!("-i 0.02 {}", self.members[1].addresses.of(Family::V4));
        let pinging = Pinging::start(&self.members[0].host, "hostile", &target);
        pinging.wait_for_replies(10, PATIENCE);
        Attacker::run(&self.attacker, attack);
        pinging.wait_for_replies(10, PATIENCE);
        let pings = pinging.finish();
        let lost = pings.lost();
        assert!(lost.len() * 100 <= LOSS * pings.sent as usize, "{lost:?} of {} lost", pings.sent);
        let grown = memory(&self.tailnet).saturating_sub(self.before);
        let latest = pings.times.iter().copied().fold(0.0, f64::max);
        let (lost, sent) = (lost.len(), pings.sent);
        println!("{lost} of {sent} pings lost, {latest:.0} ms at most, {} KiB more", grown >> 10);
        assert!(grown <= BOUND, "{} KiB more", grown >> 10);
    }
}

/// The anonymous memory of the server, in bytes.
fn memory(tailnet: &Tailnet) -> u64 {
    memory_in(&status(tailnet))
}

/// Path of the server's status file.
fn status(tailnet: &Tailnet) -> PathBuf {
    let host = &tailnet.coordinator.host;
    let pid = host.read("/run/rig/coordinator.pid");
    host.outside(format!("/proc/{}/status", pid.trim()))
}

fn memory_in(status: &Path) -> u64 {
    let status = fs::read_to_string(status).expect("the server runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.expect("a process has memory") << 10
}

#[test]
fn garbage_at_every_layer_is_refused() {
    let Some(attacked_network) = attacked_network() else { return };
    attacked_network.attack(async |attacker| {
        let mut random = Random::new(7);
        let mut garbage =
            |len: usize| (0..len).map(|_| random.below(256) as u8).collect::<Vec<u8>>();
        for round in 0..100 {
            let mut bare = attacker.tcp().await.expect("the server listens");
            let _ = bare.write_all(&garbage(600)).await;
            attacker.answer_to(&garbage(300)).await;
            let (_, mut message) = Attacker::first_message(&machine(1), &attacker.server);
            message[5 + round % 96] ^= 1;
            let refused = attacker.upgrade(&message).await;
            assert!(answer_of(refused).await.first() != Some(&2), "a broken message is answered");
            if let Some(mut stream) = attacker.upgrade(&first(&attacker)).await {
                let _ = stream.write_all(&garbage(5000)).await;
            }
        }
        for (path, body) in [("register", "7"), ("register", "{"), ("map", "\"\""), ("map", "\0")] {
            let to = attacker.http2(&machine(2)).await.expect("Noise with any key");
            let answer = post(&to, &format!("/machine/{path}"), body).await;
            assert_eq!(answer.map(|(status, _)| status), Some(400), "{path} {body:?}");
        }
        let nested = "[".repeat(100_000);
        let to = attacker.http2(&machine(2)).await.expect("Noise with any key");
        let answer = post(&to, "/machine/map", nested).await;
        assert!(answer.is_none_or(|(status, _)| status >= 400));
    });
}

fn first(attacker: &Attacker) -> Vec<u8> {
    Attacker::first_message(&machine(1), &attacker.server).1
}

/// All data behind an upgrade.
async fn answer_of(stream: Option<attacker::Tls>) -> Vec<u8> {
    let mut answer = Vec::new();
    if let Some(mut stream) = stream {
        let _ = tokio::time::timeout(attacker::ANSWER, stream.read_to_end(&mut answer)).await;
    }
    answer
}

#[test]
fn slow_clients_and_giant_requests_are_cheap_and_are_disconnected() {
    let Some(attacked_network) = attacked_network() else { return };
    attacked_network.attack(async |attacker| {
        let mut slow = JoinSet::new();
        for number in 0..300 {
            let attacker = attacker.clone();
            slow.spawn(async move {
                let head: &[u8] = match number % 3 {
                    0 => b"",
                    1 => b"GET /key HTTP/1.1\r\nHost: a\r\nX-Slow: ",
                    _ => b"POST /verify HTTP/1.1\r\nHost: a\r\nContent-Length: 4000\r\n\r\n{",
                };
                let Some(mut stream) = attacker.tls().await else { return true };
                let _ = stream.write_all(head).await;
                let output = tokio::spawn(async move { answer_of(Some(stream)).await });
                tokio::time::timeout(2 * attacker::ANSWER, output).await.is_ok()
            });
        }
        let giant = format!("GET /key HTTP/1.1\r\nX-Long: {}\r\n\r\n", "a".repeat(4 << 20));
        assert!(!attacker.answer_to(giant.as_bytes()).await.contains("publicKey"));
        let head = "POST /verify HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n";
        let output =
            attacker.answer_to(format!("{head}{}", "a".repeat(1_000_000)).as_bytes()).await;
        assert!(output.contains("413"), "{output}");
        let to = attacker.http2(&machine(3)).await.expect("Noise with any key");
        let mut giants = JoinSet::new();
        for _ in 0..40 {
            let to = to.clone();
            giants.spawn(async move {
                let body = Bytes::from(vec![b' '; 4 << 20]);
                post(&to, "/machine/register", body).await.map(|(status, _)| status)
            });
        }
        let statuses = giants.join_all().await;
        assert!(statuses.iter().all(|status| status.is_none_or(|status| status == 413)));
        assert!(slow.join_all().await.into_iter().all(|ended| ended), "every connection ends");
    });
}

#[test]
fn keys_of_others_and_replayed_messages_are_rejected() {
    let Some(attacked_network) = attacked_network() else { return };
    let nodes = attacked_network.tailnet.coordinator.nodes();
    let before = nodes.len();
    let theirs = nodes[0]["node_key"].as_str().expect("a node has a key").to_owned();
    let used = attacked_network.tailnet.coordinator.new_auth_key("");
    attacked_network.attack(async |attacker| {
        let to = attacker.http2(&machine(4)).await.expect("Noise with any key");
        let claim = json!({ "Version": 131, "NodeKey": theirs, "Hostinfo": {} });
        let (_, answer) = post(&to, "/machine/register", claim.to_string()).await.expect("a no");
        assert!(answer["Error"].to_string().contains("another machine"), "{answer}");
        let logout = json!({ "Version": 131, "NodeKey": theirs, "Expiry": "1970-01-01T00:02:03Z" });
        let (_, answer) = post(&to, "/machine/register", logout.to_string()).await.expect("a no");
        assert!(answer["Error"].to_string().contains("another machine"), "{answer}");
        let map = json!({ "Version": 131, "NodeKey": theirs, "OmitPeers": true, "Stream": false });
        assert_eq!(post(&to, "/machine/map", map.to_string()).await.expect("a no").0, 404);

        // A used key creates no second node if a registration is repeated.
        let mut with_key = registration(1);
        with_key["Auth"] = json!({ "AuthKey": used });
        let (_, made) = post(&to, "/machine/register", with_key.to_string()).await.expect("a yes");
        assert_eq!(made["MachineAuthorized"], true, "{made}");
        let thief = attacker.http2(&machine(5)).await.expect("Noise with any key");
        let mut again = registration(2);
        again["Auth"] = json!({ "AuthKey": used });
        for request in [&with_key, &again] {
            let answer = post(&thief, "/machine/register", request.to_string()).await;
            let (_, answer) = answer.expect("a no");
            assert_eq!(answer["MachineAuthorized"], false, "{answer}");
        }

        // The first message of another connection is replayed, and nothing can be sent after it.
        let recorded = first(&attacker);
        for _ in 0..50 {
            let mut stream =
                attacker.upgrade(&recorded).await.expect("the server accepts the first message");
            let _ = stream.write_all(&[4, 0, 100]).await;
            let _ = stream.write_all(&[0; 100]).await;
            // Only the reply of Noise and the first frame of HTTP/2.
            let output = answer_of(Some(stream)).await;
            assert!(output.len() < 1024, "{} bytes", output.len());
        }
        let other_server = machine(6).public();
        let (_, message) = Attacker::first_message(&machine(1), &other_server);
        let refused = answer_of(attacker.upgrade(&message).await).await;
        assert!(refused.first() != Some(&2), "for another server");
    });
    assert_eq!(attacked_network.tailnet.coordinator.nodes().len(), before + 1);
}

#[test]
fn floods_of_connections_and_registrations_do_not_block_others() {
    let Some(attacked_network) = attacked_network() else { return };
    let tailnet = &attacked_network.tailnet;
    let waiting = Member::start(tailnet.host("guest", Uplink::Switch), MemberKind::Tailscaled);
    let url = tailnet.coordinator.url();
    let up = format!("up --login-server={url} --hostname=guest --timeout=3s");
    let output = waiting.tailscale(&up).stderr;
    let link = output.split_whitespace().find(|word| word.contains("/register/"));
    let waits = link.and_then(|link| link.rsplit('/').next()).expect("a link").to_owned();
    attacked_network.attack(async |attacker| {
        let mut flood = JoinSet::new();
        for number in 0..1500_u32 {
            let attacker = attacker.clone();
            flood.spawn(async move {
                let to = attacker.http2(&machine(100 + number)).await?;
                let request = registration(100 + number).to_string();
                let answer = post(&to, "/machine/register", request).await;
                // It stays connected until all have registered.
                answer.map(|_| to)
            });
        }
        let kept: Vec<_> = flood.join_all().await.into_iter().flatten().collect();
        println!("{} registrations wait or were evicted", kept.len());
        assert!(kept.len() > 1000, "the flood comes in: {}", kept.len());
        let mut bare = Vec::new();
        for _ in 0..4000 {
            bare.extend(attacker.tcp().await);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        let one = attacker.http2(&machine(1)).await;
        assert!(one.is_some(), "the last one is admitted");
    });
    tailnet.coordinator.command(&format!("nodes register --user rig --key {waits}"));
    eventually("a client from before the flood is admitted", PATIENCE, || {
        waiting.status()["BackendState"] == "Running"
    });
    let late = join(tailnet, "late", MemberKind::Linerate, "");
    late.reaches(&attacked_network.members[0], Family::V4);
    assert!(number(tailnet, "late") > 0);
}
