use tailnet::tka::follow::Question;

use super::{super::trouble::Trouble, *};

const PATH: &str = "/machine/tka/bootstrap";

fn question(number: u32) -> Command {
    let body = json!({ "Number": number }).to_string().into_bytes();
    Command::Ask(Question { number, path: PATH, body })
}

impl Member {
    async fn answer(&mut self) -> (u32, Result<Vec<u8>, Trouble>) {
        match self.event().await {
            Event::LockAnswer { number, answer } => (number, answer.map(|text| text.to_vec())),
            event => panic!("{event:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_goes_by_the_connection_of_the_map_and_its_answer_comes_back_unread() {
    let (mut member, mut coordinator, stream) = joined().await;
    coordinator.targets();
    for (number, text) in [(7, "{}"), (8, "garbage"), (9, "")] {
        member.tell(question(number)).await;
        let asked = coordinator.is_asked().await;
        assert_eq!((asked.method.as_str(), asked.path.as_str()), ("GET", PATH));
        assert_eq!(asked.body, json!({ "Number": number }));
        asked.status(200, text);
        let (answered, answer) = member.answer().await;
        assert_eq!((answered, answer.unwrap()), (number, text.as_bytes().to_vec()));
    }
    stream.send(&json!({ "KeepAlive": true })).await;
    member.map().await;
    assert_eq!(coordinator.targets().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_without_tailnet_lock_says_so_and_the_map_goes_on() {
    let (mut member, mut coordinator, stream) = joined().await;
    member.tell(question(1)).await;
    coordinator.is_asked().await.status(404, "404 page not found");
    let (_, answer) = member.answer().await;
    let why = answer.unwrap_err().to_string();
    assert!(why.contains("404 page not found"), "{why}");
    stream.send(&json!({ "KeepAlive": true })).await;
    member.map().await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_too_long_or_never_comes_is_none() {
    let (mut member, mut coordinator, stream) = joined().await;
    member.tell(question(1)).await;
    coordinator.is_asked().await.status(200, &"x".repeat((4 << 20) + 1));
    let (_, answer) = member.answer().await;
    assert!(matches!(answer, Err(Trouble::BadAnswer(..))), "{answer:?}");
    member.tell(question(2)).await;
    drop(coordinator.is_asked().await);
    let alive = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(50)).await;
            stream.send(&json!({ "KeepAlive": true })).await;
        }
    });
    member.map().await;
    let (number, answer) = member.answer().await;
    assert!(number == 2 && matches!(answer, Err(Trouble::Silent(..))), "{answer:?}");
    alive.abort();
}

#[tokio::test(start_paused = true)]
async fn what_was_asked_over_a_former_connection_is_not_asked_again() {
    let (mut member, mut coordinator, stream) = joined().await;
    member.tell(question(1)).await;
    let _unanswered = coordinator.is_asked().await;
    drop(stream);
    member.disconnected().await;
    member.tell(question(2)).await;
    let _stream = member.connected(&mut coordinator).await;
    member.tell(question(3)).await;
    assert_eq!(coordinator.is_asked().await.body, json!({ "Number": 3 }));
}
