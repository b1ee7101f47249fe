use tokio::time::Instant;

use super::{coordinator::Behaviour, *};

/// The error for a coordinator with this behaviour, and the time until it.
async fn disconnect_reason(behaviour: Behaviour) -> (String, Duration) {
    let coordinator = Coordinator::new(behaviour);
    let mut member = Member::new(coordinator.network()).await;
    let begun = Instant::now();
    member.command(Command::Login(with_auth_key())).await;
    (member.disconnected().await, begun.elapsed())
}

#[tokio::test(start_paused = true)]
async fn silent_coordinator_times_out() {
    for (manner, limit) in [
        (Behaviour::NeverConnects, 10),
        (Behaviour::NeverAnswers, 10),
        (Behaviour::RepliesWith(vec![2]), 10),
        // HTTP/2 starts without the other end, so the request times out.
        (Behaviour::ThenSilent, 30),
    ] {
        let (why, after) = disconnect_reason(manner.clone()).await;
        assert!(why.contains("no answer in time"), "{manner:?}: {why}");
        assert_eq!(after.as_secs(), limit, "{manner:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_protocols_have_clear_errors() {
    let page = |status: &str, rest: &str| {
        let page = format!("HTTP/1.1 {status}\r\n{rest}\r\n\r\n<html>\x1b[2Jhello</html>");
        Behaviour::Sends(page.into_bytes())
    };
    for (manner, expected) in [
        (Behaviour::TooOld, "is too old: it does not support the ts2021 protocol"),
        (page("200 OK", "Content-Length: 22"), "it answers: <html>[2Jhello</html>"),
        (page("404 Not Found", "Content-Length: 0"), "404 Not Found: nothing"),
        (
            page("301 Moved", "Location: https://other.example/key\r\nContent-Length: 0"),
            "https://control.example redirects to https://other.example/key",
        ),
        (page("200 OK", "Content-Length: 99999999999"), "no answer in time: to the first request"),
        (Behaviour::Sends(vec![0; 4096]), "the connection to the coordinator ended"),
        (Behaviour::RepliesWith(b"\x03\x00\x07too bad".to_vec()), "refused the handshake: too bad"),
        (Behaviour::RepliesWith(b"\x02\xff\xff".to_vec()), "type 2 and length 65535"),
        (Behaviour::RepliesWith([&[2, 0, 48][..], &[7; 48]].concat()), "does not match"),
        (Behaviour::ThenSends(vec![4, 0xff, 0xff]), "a record of 65535 bytes"),
        (Behaviour::ThenSends([&[4, 0, 100][..], &[7; 100]].concat()), "did not seal"),
    ] {
        let (why, _) = disconnect_reason(manner.clone()).await;
        assert!(why.contains(expected), "{manner:?}: {why}");
        assert!(!why.contains('\u{1b}'));
    }
}

#[tokio::test(start_paused = true)]
async fn endless_answer_is_rejected() {
    let mut coordinator = Coordinator::new(Behaviour::Good);
    let mut member = Member::new(coordinator.network()).await;
    member.command(Command::Login(with_auth_key())).await;
    let flood = coordinator.next_registration().await.stream();
    let flooding = tokio::spawn(async move {
        loop {
            flood.raw(&[b' '; 4096]).await;
        }
    });
    assert!(member.disconnected().await.contains("length limit exceeded"));
    assert!(flooding.await.unwrap_err().is_panic(), "the stream ended");
}

#[tokio::test(start_paused = true)]
async fn returning_coordinator_is_connected_again() {
    let mut coordinator = Coordinator::new(Behaviour::NeverAnswers);
    let mut member = Member::new(coordinator.network()).await;
    member.command(Command::Resume(Login::new(KEY))).await;
    for _ in 0..20 {
        member.disconnected().await;
    }
    coordinator.set_behaviour(Behaviour::Good);
    member.connected(&mut coordinator).await;
}

#[tokio::test(start_paused = true)]
async fn server_that_closes_after_each_answer_gets_two_connections() {
    let mut coordinator = Coordinator::new(Behaviour::Closes);
    let mut member = Member::new(coordinator.network()).await;
    member.command(Command::Resume(Login::new(KEY))).await;
    member.connected(&mut coordinator).await;
    assert_eq!(coordinator.targets().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn slow_receiver_loses_no_map() {
    let (mut member, _coordinator, stream) = joined().await;
    let sending = tokio::spawn(async move {
        for number in 0..300 {
            stream.send(&json!({ "Domain": number.to_string() })).await;
        }
        stream
    });
    for number in 0..300 {
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(member.map().await.domain, number.to_string());
    }
    let _stream = sending.await.unwrap();
}
