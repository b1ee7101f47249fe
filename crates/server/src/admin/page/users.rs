//! Pages of users.

use askama::Template;
use axum::{extract::Path, response::Response};
use coordinator::{
    State, Time,
    object::{self, UserId},
};

use super::{Frame, PageSession, not_found, render, timestamp::Timestamp};
use crate::clock::now;

#[derive(Template)]
#[template(path = "users.html")]
struct Users {
    frame: Frame,
    users: Vec<User>,
}

#[derive(Template)]
#[template(path = "user.html")]
struct One {
    frame: Frame,
    user: User,
}

struct User {
    id: i64,
    name: String,
    display: String,
    email: String,
    machines: usize,
    is_owner: bool,
    since: Timestamp,
}

pub(super) async fn list(session: PageSession) -> Response {
    let frame = session.frame("users");
    let look = |state: &State| {
        let owner = state.owner();
        state.users().map(|one| user(state, one, owner, now())).collect()
    };
    let users = session.network.read(look);
    render(&Users { frame, users })
}

pub(super) async fn show(session: PageSession, Path(id): Path<i64>) -> Response {
    let frame = session.frame("users");
    let found = session.network.read(|state| {
        let found = state.users().find(|user| user.id.0 == id)?;
        Some(user(state, found, state.owner(), now()))
    });
    found.map_or_else(not_found, |user| render(&One { frame, user }))
}

fn user(state: &State, user: &object::User, owner: Option<UserId>, now: Time) -> User {
    User {
        id: user.id.0,
        name: user.name.clone(),
        display: user.display_name.clone(),
        email: user.email.clone(),
        machines: state.nodes().filter(|view| view.node.user == Some(user.id)).count(),
        is_owner: Some(user.id) == owner,
        since: Timestamp::of(user.created, now),
    }
}
