//! SSH logins that wait for approval.

use coordinator::{SshLogin, State};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    answer::ApiResult,
    extract::{Admin, JsonBody},
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LoginId {
    auth_id: String,
}

pub(super) async fn approve(
    admin: Admin,
    JsonBody(LoginId { auth_id }): JsonBody<LoginId>,
) -> ApiResult {
    decide(admin, auth_id, true).await
}

pub(super) async fn reject(
    admin: Admin,
    JsonBody(LoginId { auth_id }): JsonBody<LoginId>,
) -> ApiResult {
    decide(admin, auth_id, false).await
}

async fn decide(admin: Admin, number: String, is_approved: bool) -> ApiResult {
    let does = if is_approved { "approve" } else { "reject" };
    let waiting = admin.network.read(|state| {
        state.pending_ssh_login(&number, crate::clock::now()).map(|login| describe(state, login))
    });
    let what = format!("{does} {}", waiting.unwrap_or_else(|| "an SSH login".to_owned()));
    admin
        .run(what, move |state, now| {
            let login = state.decide_ssh(&number, is_approved, now)?;
            Ok(login_view(state, &login))
        })
        .await
}

/// Describes a login for the audit log.
pub fn describe(state: &State, login: &SshLogin) -> String {
    let name = |id| state.node(id).map_or("a node", |view| view.node.name.as_str());
    format!("the login of {} at {} as {}", name(login.from), name(login.at), login.account)
}

fn login_view(state: &State, login: &SshLogin) -> Value {
    let name = |id| state.node(id).map(|view| view.node.name.clone());
    json!({ "from": name(login.from), "to": name(login.at), "account": login.account })
}
