//! Logins by SSH that wait for somebody to confirm them.

use coordinator::{SshLogin, State};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    answer::Answered,
    desk::{Desk, Said},
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Which {
    auth_id: String,
}

pub async fn approve(desk: Desk, Said(Which { auth_id }): Said<Which>) -> Answered {
    decide(desk, auth_id, true).await
}

pub async fn reject(desk: Desk, Said(Which { auth_id }): Said<Which>) -> Answered {
    decide(desk, auth_id, false).await
}

async fn decide(desk: Desk, number: String, goes_on: bool) -> Answered {
    let does = if goes_on { "approve" } else { "reject" };
    let waiting = desk.server.network.read(|state| {
        state.pending_ssh_login(&number, crate::clock::now()).map(|login| words(state, login))
    });
    let what = format!("{does} {}", waiting.unwrap_or_else(|| "a login by SSH".to_owned()));
    desk.run(what, move |state, now| {
        let login = state.decide_ssh(&number, goes_on, now)?;
        Ok(shown(state, &login))
    })
    .await
}

/// A login, as the audit says it.
pub fn words(state: &State, login: &SshLogin) -> String {
    let name = |id| state.node(id).map_or("a node", |view| view.node.name.as_str());
    format!("the login of {} at {} as {}", name(login.from), name(login.at), login.account)
}

fn shown(state: &State, login: &SshLogin) -> Value {
    let name = |id| state.node(id).map(|view| view.node.name.clone());
    json!({ "from": name(login.from), "to": name(login.at), "account": login.account })
}
