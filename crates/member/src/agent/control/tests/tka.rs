use mesh::tka_follower::SyncRequest;

use super::{super::error::ControlError, *};

const PATH: &str = "/machine/tka/bootstrap";

fn tka_request(number: u32) -> Command {
    let body = json!({ "Number": number }).to_string().into_bytes();
    Command::TkaRequest(SyncRequest { number, path: PATH, body })
}

impl Member {
    async fn answer(&mut self) -> (u32, Result<Vec<u8>, ControlError>) {
        match self.event().await {
            Event::TkaResponse { number, answer } => (number, answer.map(|text| text.to_vec())),
            event => panic!("{event:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn tka_request_uses_the_map_connection_and_its_body_is_returned_unparsed() {
    let (mut member, mut coordinator, stream) = joined().await;
    coordinator.targets();
    for (number, text) in [(7, "{}"), (8, "garbage"), (9, "")] {
        member.command(tka_request(number)).await;
        let request = coordinator.next_tka_request().await;
        assert_eq!((request.method.as_str(), request.path.as_str()), ("GET", PATH));
        assert_eq!(request.body, json!({ "Number": number }));
        request.status(200, text);
        let (answered, answer) = member.answer().await;
        assert_eq!((answered, answer.unwrap()), (number, text.as_bytes().to_vec()));
    }
    stream.send(&json!({ "KeepAlive": true })).await;
    member.map().await;
    assert_eq!(coordinator.targets().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn error_for_a_tka_request_does_not_end_the_map_stream() {
    let (mut member, mut coordinator, stream) = joined().await;
    member.command(tka_request(1)).await;
    coordinator.next_tka_request().await.status(404, "404 page not found");
    let (_, answer) = member.answer().await;
    let why = answer.unwrap_err().to_string();
    assert!(why.contains("404 page not found"), "{why}");
    stream.send(&json!({ "KeepAlive": true })).await;
    member.map().await;
}

#[tokio::test(start_paused = true)]
async fn tka_answer_that_is_too_long_or_missing_is_an_error() {
    let (mut member, mut coordinator, stream) = joined().await;
    member.command(tka_request(1)).await;
    coordinator.next_tka_request().await.status(200, &"x".repeat((4 << 20) + 1));
    let (_, answer) = member.answer().await;
    assert!(matches!(answer, Err(ControlError::BadResponse(..))), "{answer:?}");
    member.command(tka_request(2)).await;
    drop(coordinator.next_tka_request().await);
    let alive = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(50)).await;
            stream.send(&json!({ "KeepAlive": true })).await;
        }
    });
    member.map().await;
    let (number, answer) = member.answer().await;
    assert!(number == 2 && matches!(answer, Err(ControlError::NoAnswer(..))), "{answer:?}");
    alive.abort();
}

#[tokio::test(start_paused = true)]
async fn tka_request_of_a_lost_connection_is_not_repeated() {
    let (mut member, mut coordinator, stream) = joined().await;
    member.command(tka_request(1)).await;
    let _unanswered = coordinator.next_tka_request().await;
    drop(stream);
    member.disconnected().await;
    member.command(tka_request(2)).await;
    let _stream = member.connected(&mut coordinator).await;
    member.command(tka_request(3)).await;
    assert_eq!(coordinator.next_tka_request().await.body, json!({ "Number": 3 }));
}
