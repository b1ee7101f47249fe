//! Checked SSH logins (tailscale `tailcfg.SSHAction`). The node requests an action, and gets the
//! answer when the login is approved or rejected.

use std::time::Duration;

use anyhow::Context;
use coordinator::{SshOutcome, object::NodeId};
use hyper::{Response, StatusCode, Uri};
use policy::SshAction;
use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use super::Client;
use crate::{
    clock::now,
    http::body::{Answer, json, text},
    net::address::ServerUrl,
    network::NetworkState,
    random::random_number,
};

/// Prefix of the paths. Two node IDs follow, such as `7/to/8`.
pub(crate) const PATH: &str = "/machine/ssh/action/";
/// Prefix of the page of a waiting login.
pub(crate) const PAGE: &str = "/ssh/";
/// How long a request waits for a decision. The client then repeats it.
const HOLD: Duration = Duration::from_secs(50);

/// A node's request about a login to it.
struct SshRequest {
    ends: [NodeId; 2],
    account: String,
    /// The ID of the login, if it is already waiting.
    followed: Option<String>,
}

impl SshRequest {
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

    /// The URL of the node's next request.
    fn url(&self, number: &str) -> String {
        let [from, at] = self.ends;
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("local_user", &self.account).append_pair("check", number);
        format!("https://unused{PATH}{from}/to/{at}?{}", query.finish())
    }
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct SshAnswer {
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    reject: bool,
    #[serde(flatten)]
    action: SshAction,
}

/// Answers a node's request.
pub(crate) async fn answer(
    (network, own_url): (&NetworkState, &ServerUrl),
    client: Client,
    uri: &Uri,
) -> anyhow::Result<Response<Answer>> {
    let Some(request) = SshRequest::read(uri) else {
        return Ok(text(StatusCode::BAD_REQUEST, "not a request about a login\n"));
    };
    if !network.read(|state| state.belongs_to_machine(request.ends[1], &client.machine)) {
        return Ok(text(StatusCode::FORBIDDEN, "the login is to another machine\n"));
    }
    let answer = match decide(network, &request).await? {
        SshOutcome::Accepted => SshAnswer { action: SshAction::accepted(), ..SshAnswer::default() },
        SshOutcome::Refused(why) => {
            SshAnswer { message: format!("{why}\r\n"), reject: true, ..SshAnswer::default() }
        }
        SshOutcome::Pending(number) => {
            let is_new = request.followed.as_ref() != Some(&number);
            let message = if is_new { invitation(own_url, &number) } else { String::new() };
            let hold_and_delegate = request.url(&number);
            let action = SshAction { hold_and_delegate, ..SshAction::default() };
            SshAnswer { message, action, ..SshAnswer::default() }
        }
    };
    Ok(json(StatusCode::OK, serde_json::to_string(&answer).context("an action is JSON")?))
}

fn invitation(own_url: &ServerUrl, number: &str) -> String {
    format!("# This login must be approved. Open:\r\n#\r\n#     {own_url}{PAGE}{number}\r\n#\r\n")
}

/// Waits until a waiting login is decided, or the maximum time has passed.
async fn decide(network: &NetworkState, request: &SshRequest) -> anyhow::Result<SshOutcome> {
    if let Some(followed) = &request.followed {
        let (mut committed, deadline) = (network.committed(), Instant::now() + HOLD);
        let is_open = || network.read(|state| state.pending_ssh_login(followed, now()).is_some());
        while is_open() {
            let changed = timeout_at(deadline, committed.changed()).await;
            if !matches!(changed, Ok(Ok(()))) {
                break;
            }
        }
    }
    let (number, ends) = (random_number()?, request.ends);
    let (account, followed) = (request.account.clone(), request.followed.clone());
    let outcome = network
        .run(move |state, now| state.ssh_login(ends, &account, followed.as_deref(), &number, now));
    outcome.await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_for_the_next_request_can_be_parsed() {
        let uri = |text: &str| text.parse::<Uri>().unwrap();
        let first = format!("{PATH}7/to/8?local_user=an%2Bna%26");
        let request = SshRequest::read(&uri(&first)).unwrap();
        assert_eq!((request.ends, &*request.account), ([NodeId(7), NodeId(8)], "an+na&"));
        assert!(request.followed.is_none());
        let next = SshRequest::read(&uri(&request.url("abc"))).unwrap();
        assert_eq!((next.ends, &next.account), (request.ends, &request.account));
        assert_eq!(next.followed.as_deref(), Some("abc"));
        for wrong in ["", "7", "7/to/", "7/to/x?local_user=a", "7/to/8", "7/to/8?check=a"] {
            assert!(SshRequest::read(&uri(&format!("{PATH}{wrong}"))).is_none(), "{wrong}");
        }
    }

    #[test]
    fn ssh_answers_have_the_fields_that_clients_expect() {
        let answer = |answer: SshAnswer| serde_json::to_value(&answer).unwrap();
        let refused =
            answer(SshAnswer { message: "no".into(), reject: true, ..SshAnswer::default() });
        assert_eq!(refused, serde_json::json!({ "message": "no", "reject": true }));
        let accepted = answer(SshAnswer { action: SshAction::accepted(), ..SshAnswer::default() });
        assert_eq!((&accepted["accept"], accepted.get("reject")), (&true.into(), None));
    }
}
