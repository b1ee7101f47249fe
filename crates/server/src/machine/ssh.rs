//! What becomes of a login by SSH that is checked (tailscale `tailcfg.SSHAction`): its node asks, and
//! is answered when somebody has decided.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use coordinator::{SshOutcome, object::NodeId};
use hyper::{Response, StatusCode, Uri};
use policy::SshAction;
use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use super::{Client, random_number};
use crate::{
    body::{Answer, json, text},
    clock::now,
    serve::Server,
};

/// What the paths begin with: two numbers of nodes follow, as `7/to/8`.
pub const PATH: &str = "/machine/ssh/action/";
/// Where a login is shown that waits.
pub const PAGE: &str = "/ssh/";
/// How long a question is held. The client asks again.
const HOLD: Duration = Duration::from_secs(50);

/// A question of a node that somebody logs in to.
struct Question {
    ends: [NodeId; 2],
    account: String,
    /// The number under which the login waits already.
    followed: Option<String>,
}

impl Question {
    fn read(uri: &Uri) -> Option<Self> {
        let (from, at) = uri.path().strip_prefix(PATH)?.split_once("/to/")?;
        let ends = [NodeId(from.parse().ok()?), NodeId(at.parse().ok()?)];
        let (mut account, mut followed) = (None, None);
        for (name, value) in form_urlencoded::parse(uri.query()?.as_bytes()) {
            match &*name {
                "local_user" => account = Some(value.into_owned()),
                "check" => followed = Some(value.into_owned()),
                _ => {}
            }
        }
        Some(Self { ends, account: account?, followed })
    }

    /// Where the node asks on.
    fn url(&self, number: &str) -> String {
        let [from, at] = self.ends;
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("local_user", &self.account).append_pair("check", number);
        format!("https://unused{PATH}{from}/to/{at}?{}", query.finish())
    }
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Told {
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    reject: bool,
    #[serde(flatten)]
    action: SshAction,
}

/// Answers a node's question.
pub async fn answer(
    server: &Arc<Server>,
    client: Client,
    uri: &Uri,
) -> anyhow::Result<Response<Answer>> {
    let Some(question) = Question::read(uri) else {
        return Ok(text(StatusCode::BAD_REQUEST, "not a question about a login\n"));
    };
    if !server.network.read(|state| state.belongs_to_machine(question.ends[1], &client.machine)) {
        return Ok(text(StatusCode::FORBIDDEN, "the login is at another machine\n"));
    }
    let told = match decide(server, &question).await? {
        SshOutcome::Accepted => Told { action: SshAction::accepted(), ..Told::default() },
        SshOutcome::Refused(why) => {
            Told { message: format!("{why}\r\n"), reject: true, ..Told::default() }
        }
        SshOutcome::Pending(number) => {
            let is_new = question.followed.as_ref() != Some(&number);
            let message = if is_new { invitation(server, &number) } else { String::new() };
            let hold_and_delegate = question.url(&number);
            let action = SshAction { hold_and_delegate, ..SshAction::default() };
            Told { message, action, ..Told::default() }
        }
    };
    Ok(json(StatusCode::OK, serde_json::to_string(&told).context("an action is JSON")?))
}

fn invitation(server: &Server, number: &str) -> String {
    format!(
        "# This login has to be confirmed. Open:\r\n#\r\n#     {}{PAGE}{number}\r\n#\r\n",
        server.url
    )
}

/// Waits until a login that waits already is decided, for as long as a question is held.
async fn decide(server: &Server, question: &Question) -> anyhow::Result<SshOutcome> {
    if let Some(followed) = &question.followed {
        let (mut kept, deadline) = (server.network.kept(), Instant::now() + HOLD);
        let is_open =
            || server.network.read(|state| state.pending_ssh_login(followed, now()).is_some());
        while is_open() {
            let changed = timeout_at(deadline, kept.changed()).await;
            if !matches!(changed, Ok(Ok(()))) {
                break;
            }
        }
    }
    let (number, ends) = (random_number()?, question.ends);
    let (account, followed) = (question.account.clone(), question.followed.clone());
    let asked = server
        .network
        .run(move |state, now| state.ssh_login(ends, &account, followed.as_deref(), &number, now));
    asked.await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_is_told_to_ask_it_can_ask() {
        let uri = |text: &str| text.parse::<Uri>().unwrap();
        let first = format!("{PATH}7/to/8?local_user=an%2Bna%26");
        let question = Question::read(&uri(&first)).unwrap();
        assert_eq!((question.ends, &*question.account), ([NodeId(7), NodeId(8)], "an+na&"));
        assert!(question.followed.is_none());
        let next = Question::read(&uri(&question.url("abc"))).unwrap();
        assert_eq!((next.ends, &next.account), (question.ends, &question.account));
        assert_eq!(next.followed.as_deref(), Some("abc"));
        for wrong in ["", "7", "7/to/", "7/to/x?local_user=a", "7/to/8", "7/to/8?check=a"] {
            assert!(Question::read(&uri(&format!("{PATH}{wrong}"))).is_none(), "{wrong}");
        }
    }

    #[test]
    fn actions_are_written_as_clients_read_them() {
        let told = |told: Told| serde_json::to_value(&told).unwrap();
        let refused = told(Told { message: "no".into(), reject: true, ..Told::default() });
        assert_eq!(refused, serde_json::json!({ "message": "no", "reject": true }));
        let accepted = told(Told { action: SshAction::accepted(), ..Told::default() });
        assert_eq!((&accepted["accept"], accepted.get("reject")), (&true.into(), None));
    }
}
