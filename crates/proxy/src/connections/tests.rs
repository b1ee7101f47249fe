//! On virtual time: the runtime's clock advances only by sleeps.

use tokio::{runtime::Builder, task::yield_now, time::advance};

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const CAPACITY: Capacity = Capacity {
    all: 1000,
    side: 750,
    service: 500,
    source: 250,
    before_request: 20,
    datagrams: 0,
    dialling: 0,
};
const HERE: Source =
    Source::Client(Client::Ip(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)));

fn run<T>(work: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(work)
}

fn peer(number: u8) -> Source {
    Source::Peer(PublicKey::from([number; 32]))
}

/// Admits `count` connections with one descriptor each.
fn many(connections: &Connections, group: Group, source: Source, count: usize) -> Vec<Connection> {
    let admit = |_| connections.admit(group, source, 1).unwrap();
    (0..count).map(admit).collect()
}

fn evicted(connections: &[Connection]) -> Vec<usize> {
    let is_evicted =
        |connection: &Connection| connection.activity().is_evicted.load(Ordering::Relaxed);
    let all = connections.iter().enumerate();
    all.filter(|(_, connection)| is_evicted(connection)).map(|(at, _)| at).collect()
}

#[test]
fn source_at_its_limit_is_refused_while_its_connections_are_busy() {
    run(async {
        let connections = Connections::new(CAPACITY);
        let hog = many(&connections, Group::Exposed(0), peer(1), 250);
        for _ in 0..3 {
            advance(9 * SECOND).await;
            hog.iter().for_each(Connection::touch);
            for service in [0, 1] {
                let refused = connections.admit(Group::Exposed(service), peer(1), 1).unwrap_err();
                assert_eq!(refused, Refused::Source);
            }
        }
        assert!(evicted(&hog).is_empty());
        // Other sources are served, and the proxies too.
        let _other = many(&connections, Group::Exposed(0), peer(2), 250);
        let _clients = many(&connections, Group::Clients, HERE, 400);
        let counters = connections.counters();
        assert_eq!((counters.source, counters.idle), (6, 0));
    });
}

#[test]
fn longest_idle_connection_of_a_full_source_is_evicted() {
    run(async {
        let connections = Connections::new(CAPACITY);
        let mut hog = many(&connections, Group::Exposed(0), peer(1), 250);
        let _other = many(&connections, Group::Exposed(0), peer(2), 1);
        advance(SECOND).await;
        hog.iter().rev().skip(2).for_each(Connection::touch);
        advance(9 * SECOND).await;
        hog[249].touch();
        // Only 248 has been idle for ten seconds.
        for expected in [vec![248], vec![248, 0], vec![248, 0, 1]] {
            hog.push(connections.admit(Group::Exposed(0), peer(1), 1).unwrap());
            let mut all = evicted(&hog);
            all.sort_by_key(|at| expected.iter().position(|other| other == at));
            assert_eq!(all, expected);
            advance(SECOND).await;
        }
        assert_eq!(connections.counters().idle, 3);
        let gone = hog.remove(248);
        gone.activity().evicted().await;
        drop(gone);
        assert!(connections.lock().full((Group::Exposed(0), peer(1)), 1).is_some());
    });
}

#[test]
fn full_service_evicts_from_the_peer_with_the_most_connections() {
    run(async {
        let connections = Connections::new(Capacity { source: 400, ..CAPACITY });
        let most = many(&connections, Group::Exposed(0), peer(1), 300);
        let fewer = many(&connections, Group::Exposed(0), peer(2), 200);
        advance(20 * SECOND).await;
        let _new = many(&connections, Group::Exposed(0), peer(3), 50);
        assert_eq!((evicted(&most).len(), evicted(&fewer).len()), (50, 0));
        // The first peer still has the most connections: its own are evicted.
        let _more = many(&connections, Group::Exposed(0), peer(1), 10);
        assert_eq!((evicted(&most).len(), evicted(&fewer).len()), (60, 0));
        most.iter().for_each(Connection::touch);
        let refused = connections.admit(Group::Exposed(0), peer(1), 1).unwrap_err();
        assert_eq!(refused, Refused::Service, "only peers with fewer connections have idle ones");
        // A newcomer with fewer connections evicts an idle one of a peer with more.
        connections.admit(Group::Exposed(0), peer(3), 1).unwrap();
        assert_eq!(evicted(&fewer).len(), 1);
    });
}

#[test]
fn proxies_and_services_leave_each_other_a_quarter() {
    run(async {
        let connections = Connections::new(CAPACITY);
        let mut held = Vec::new();
        for (service, number) in [(0, 1), (0, 2), (1, 3)] {
            held.push(many(&connections, Group::Exposed(service), peer(number), 250));
        }
        let refused = connections.admit(Group::Exposed(1), peer(4), 1).unwrap_err();
        assert_eq!(refused, Refused::All);
        let _clients = many(&connections, Group::Clients, HERE, 250);
        assert_eq!(connections.admit(Group::Clients, HERE, 1).unwrap_err(), Refused::All);
        drop(held);
        let _clients = many(&connections, Group::Clients, HERE, 500);
        assert_eq!(connections.admit(Group::Clients, HERE, 1).unwrap_err(), Refused::All);
        drop(many(&connections, Group::Exposed(0), peer(1), 250));
    });
}

#[test]
fn longest_silent_client_before_a_request_is_evicted_after_two_seconds() {
    run(async {
        let connections = Connections::new(CAPACITY);
        let mut silent = many(&connections, Group::BeforeRequest, HERE, 20);
        silent[0].change_group(Group::Clients, 4).unwrap();
        silent.push(connections.admit(Group::BeforeRequest, HERE, 1).unwrap());
        advance(2 * SECOND).await;
        for _ in 0..10 {
            silent.push(connections.admit(Group::BeforeRequest, HERE, 1).unwrap());
        }
        assert_eq!(evicted(&silent), (1..11).collect::<Vec<_>>());
        assert_eq!(connections.counters().before_request, 10);
        assert_eq!(silent[1].change_group(Group::Clients, 4).unwrap_err(), Refused::All);
        drop(silent);
        // A host that connects endlessly evicts its own connections.
        let far = |last| Source::Client(Client::Ip([192, 0, 2, last].into()));
        let modest = connections.admit(Group::BeforeRequest, far(1), 1).unwrap();
        advance(3 * SECOND).await;
        let mut flood = Vec::new();
        for _ in 0..1000 {
            flood.extend(connections.admit(Group::BeforeRequest, far(2), 1));
            advance(SECOND / 4).await;
        }
        assert!(flood.len() > 100 && evicted(&[modest]).is_empty());
    });
}

#[test]
fn client_waits_until_another_has_sent_its_request_or_is_silent() {
    run(async {
        let connections = Connections::new(CAPACITY);
        let mut first = many(&connections, Group::BeforeRequest, HERE, 20);
        let began = Instant::now();
        let waits = async {
            let asking = connections.admit_before_request(HERE, Duration::ZERO).await;
            (asking.unwrap(), began.elapsed())
        };
        let asks = async {
            tokio::time::sleep(SECOND / 2).await;
            first[7].change_group(Group::Clients, 1).unwrap();
        };
        let ((_second, waited), ()) = tokio::join!(waits, asks);
        assert_eq!(waited, SECOND / 2);
        let left = async {
            tokio::time::sleep(SECOND / 2).await;
            first.pop();
        };
        let waits = async {
            let asking = connections.admit_before_request(HERE, Duration::ZERO).await;
            (asking.unwrap(), began.elapsed())
        };
        let ((_third, waited), ()) = tokio::join!(waits, left);
        assert_eq!((waited, evicted(&first).len()), (SECOND, 0));
        // All stay silent: the first is evicted once it has been silent for two seconds.
        let _fourth = connections.admit_before_request(HERE, Duration::ZERO).await.unwrap();
        assert!(began.elapsed() >= 2 * SECOND && began.elapsed() < 3 * SECOND);
        assert_eq!(evicted(&first), [0]);
        assert_eq!((connections.counters().before_request, connections.counters().all), (1, 0));
    });
}

#[test]
fn client_with_a_request_waits_for_room_and_is_refused_after_ten_seconds() {
    run(async {
        let connections = Connections::new(Capacity { side: 40, ..CAPACITY });
        let mut busy = many(&connections, Group::Clients, HERE, 40);
        let keep_busy = |busy: &[Connection]| busy.iter().for_each(Connection::touch);
        let mut asking = connections.admit(Group::BeforeRequest, HERE, 1).unwrap();
        let began = Instant::now();
        let ends = async {
            tokio::time::sleep(5 * SECOND).await;
            keep_busy(&busy);
            busy.truncate(36);
        };
        let (admitted, ()) = tokio::join!(asking.wait_to_change_group(Group::Clients, 4), ends);
        assert_eq!((admitted, began.elapsed()), (Ok(()), 5 * SECOND));
        assert_eq!(connections.counters(), Counters::default());
        let mut late = connections.admit(Group::BeforeRequest, HERE, 1).unwrap();
        let began = Instant::now();
        let keep = async {
            for _ in 0..11 {
                keep_busy(&busy);
                asking.touch();
                tokio::time::sleep(SECOND).await;
            }
        };
        let refused =
            async { (late.wait_to_change_group(Group::Clients, 4).await, began.elapsed()) };
        let ((refused, waited), ()) = tokio::join!(refused, keep);
        assert_eq!(refused, Err(Refused::All));
        assert!(waited >= 10 * SECOND && waited < 11 * SECOND, "{waited:?}");
        assert_eq!(connections.counters(), Counters { all: 1, ..Counters::default() });
    });
}

#[test]
fn burst_of_one_host_waits_for_its_own_connections_to_end() {
    run(async {
        let connections = Connections::new(Capacity { source: 4, ..CAPACITY });
        let host = Source::Client(Client::Ip([192, 0, 2, 1].into()));
        let burst = (0..20).map(|_| {
            let mut client = connections.admit(Group::BeforeRequest, host, 1).unwrap();
            async move {
                let admitted = client.wait_to_change_group(Group::Clients, 1).await;
                tokio::time::sleep(SECOND).await;
                admitted
            }
        });
        let burst: Vec<_> = burst.map(tokio::spawn).collect();
        for client in burst {
            assert_eq!(client.await.unwrap(), Ok(()));
        }
        assert_eq!(connections.counters(), Counters::default());
    });
}

/// Otherwise a client after many silent ones would wait two seconds for each table of them.
#[test]
fn time_in_the_listener_queue_counts_as_silence() {
    run(async {
        let connections = Connections::new(CAPACITY);
        let first = many(&connections, Group::BeforeRequest, HERE, 20);
        advance(2 * SECOND).await;
        let began = Instant::now();
        let mut rest = Vec::new();
        for _ in 0..500 {
            rest.push(connections.admit_before_request(HERE, 2 * SECOND).await.unwrap());
        }
        assert_eq!((began.elapsed(), evicted(&first).len()), (Duration::ZERO, 20));
        assert_eq!(evicted(&rest).len(), 480);
    });
}

#[test]
fn ipv6_hosts_of_a_64_share_a_limit_and_local_clients_are_unlimited() {
    run(async {
        let connections = Connections::new(CAPACITY);
        let host = |text: &str| Source::Client(Client::Ip(text.parse().unwrap()));
        let _all = many(&connections, Group::Clients, host("2001:db8::1"), 250);
        let refused = connections.admit(Group::Clients, host("2001:db8::2"), 1).unwrap_err();
        assert_eq!(refused, Refused::Source);
        connections.admit(Group::Clients, host("2001:db8:0:1::1"), 1).unwrap();
        let _v4 = many(&connections, Group::Clients, host("192.0.2.1"), 250);
        let refused = connections.admit(Group::Clients, host("::ffff:192.0.2.1"), 1).unwrap_err();
        assert_eq!(refused, Refused::Source);
        drop((_all, _v4));
        drop(many(&connections, Group::Clients, host("::1"), 750));
        drop(many(&connections, Group::Clients, Source::Client(Client::User(7)), 750));
    });
}

#[test]
fn dropped_and_evicted_connections_are_removed_once() {
    run(async {
        let connections = Connections::new(CAPACITY);
        let mut all = many(&connections, Group::Exposed(0), peer(1), 250);
        advance(20 * SECOND).await;
        all.extend(many(&connections, Group::Exposed(0), peer(1), 250));
        assert_eq!(evicted(&all), (0..250).collect::<Vec<_>>());
        let waiting = all[0].activity();
        let waits = tokio::spawn(async move { waiting.evicted().await });
        yield_now().await;
        assert!(waits.is_finished());
        drop(all);
        let table = connections.lock();
        assert_eq!((table.all, table.holders.len()), (0, 0));
    });
}
