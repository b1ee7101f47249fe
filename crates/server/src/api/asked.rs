//! The questions and commands of administrators.

use std::{borrow::Cow, sync::Arc};

use coordinator::{
    Admission, NewKey, Refusal, State, Time,
    object::{KeyId, NodeId, RegisterMethod, User, UserId},
    secret,
};
use hyper::StatusCode;
use ipnet::IpNet;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::shown;
use crate::serve::Server;

/// A request, read as far as all have it.
pub struct Asked<'a> {
    pub server: &'a Arc<Server>,
    pub path: &'a str,
    pub query: &'a str,
    pub body: &'a [u8],
}

/// Why something is not answered.
pub enum Trouble {
    NoSuchThing,
    BadRequest(String),
    Refused(Refusal),
    Failed(anyhow::Error),
}

impl Trouble {
    /// In HTTP, and in words.
    pub fn said(&self) -> (StatusCode, String) {
        match self {
            Self::NoSuchThing => (StatusCode::NOT_FOUND, "there is no such command".into()),
            Self::BadRequest(why) => (StatusCode::BAD_REQUEST, why.clone()),
            Self::Refused(why) => (StatusCode::CONFLICT, why.to_string()),
            Self::Failed(why) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{why:#}")),
        }
    }
}

impl From<Refusal> for Trouble {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct NewUser {
    name: String,
    display_name: String,
    email: String,
    picture_url: String,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct AskedKey {
    user: Option<String>,
    reusable: bool,
    ephemeral: bool,
    expiration: Option<String>,
    acl_tags: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tags {
    tags: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Routes {
    routes: Vec<IpNet>,
}

type Answered = Result<Value, Trouble>;

impl Asked<'_> {
    pub fn get(&self) -> Answered {
        let parts: Vec<&str> = self.path.split('/').collect();
        self.server.network.read(|state| match parts[..] {
            ["user"] => Ok(state.users().map(shown::user).collect()),
            ["preauthkey"] => Ok(state.keys().map(|key| shown::key(state, key, None)).collect()),
            ["node"] => self.nodes(state),
            ["node", id] => {
                let id = NodeId(number(id)?);
                let view = state.node(id).ok_or(Refusal::NoNode(id))?;
                Ok(shown::node(state, view))
            }
            _ => Err(Trouble::NoSuchThing),
        })
    }

    fn nodes(&self, state: &State) -> Answered {
        let user = match self.parameter("user") {
            Some(name) => Some(state.find_user(&name)?.id),
            None => None,
        };
        let is_theirs = |owner: Option<UserId>| user.is_none() || owner == user;
        let nodes = state.nodes().filter(|view| is_theirs(view.node.user));
        Ok(nodes.map(|view| shown::node(state, view)).collect())
    }

    pub async fn post(&self) -> Answered {
        let parts: Vec<&str> = self.path.split('/').collect();
        match parts[..] {
            ["user"] => self.create_user().await,
            ["user", id, "rename", name] => {
                let (id, name) = (id.to_owned(), decoded(name));
                self.run(move |state, _| {
                    let id = state.find_user(&id)?.id;
                    Ok(shown::user(&state.rename_user(id, &name)?))
                })
                .await
            }
            ["preauthkey"] => self.create_key().await,
            ["preauthkey", id, "expire"] => {
                let id = KeyId(number(id)?);
                self.run(move |state, now| Ok(json!(state.expire_key(id, now)?))).await
            }
            ["node", "register"] => self.register().await,
            ["node", id, command] => self.command_node(NodeId(number(id)?), command, "").await,
            ["node", id, command, value] => {
                self.command_node(NodeId(number(id)?), command, &decoded(value)).await
            }
            _ => Err(Trouble::NoSuchThing),
        }
    }

    pub async fn delete(&self) -> Answered {
        let parts: Vec<&str> = self.path.split('/').collect();
        match parts[..] {
            ["user", id] => {
                let id = decoded(id);
                self.run(move |state, _| {
                    let id = state.find_user(&id)?.id;
                    Ok(json!(state.delete_user(id)?))
                })
                .await
            }
            ["preauthkey", id] => {
                let id = KeyId(number(id)?);
                self.run(move |state, _| Ok(json!(state.delete_key(id)?))).await
            }
            ["node", id] => {
                let id = NodeId(number(id)?);
                self.run(move |state, _| Ok(json!(state.delete_node(id)?))).await
            }
            _ => Err(Trouble::NoSuchThing),
        }
    }

    async fn create_user(&self) -> Answered {
        let NewUser { name, display_name, email, picture_url } = self.read()?;
        let user = User { name, display_name, email, picture_url, ..User::default() };
        self.run(move |state, now| Ok(shown::user(&state.create_user(user.clone(), now)?))).await
    }

    async fn create_key(&self) -> Answered {
        let asked: AskedKey = self.read()?;
        let expires = match &asked.expiration {
            Some(text) => Some(time(text)?),
            None => None,
        };
        let mut random = [0; 38];
        getrandom::fill(&mut random).map_err(|error| Trouble::Failed(error.into()))?;
        let text = secret::write(&random);
        self.run(move |state, now| {
            let AskedKey { user, reusable, ephemeral, acl_tags, .. } = &asked;
            let user = match user {
                Some(name) => Some(state.find_user(name)?.id),
                None => None,
            };
            let (reusable, ephemeral, tags) = (*reusable, *ephemeral, acl_tags.clone());
            let new = NewKey { user, reusable, ephemeral, tags, expires };
            let key = state.create_key(new, &text, now)?;
            Ok(shown::key(state, &key, Some(&text)))
        })
        .await
    }

    async fn register(&self) -> Answered {
        let missing = |name| Trouble::BadRequest(format!("the parameter {name} is missing"));
        let user = self.parameter("user").ok_or_else(|| missing("user"))?.into_owned();
        let number = self.parameter("key").ok_or_else(|| missing("key"))?.into_owned();
        self.run(move |state, now| {
            let user = state.find_user(&user)?.id;
            let admission = Admission { user, method: RegisterMethod::Cli, expires: None };
            let id = state.admit(&number, admission, now)?;
            shown_node(state, id)
        })
        .await
    }

    async fn command_node(&self, id: NodeId, command: &str, value: &str) -> Answered {
        match command {
            "expire" => {
                let at = match self.parameter("expiry") {
                    Some(text) => Some(time(&text)?),
                    None => None,
                };
                let never = self.parameter("disable").is_some();
                self.run(move |state, now| {
                    let at = at.unwrap_or(now);
                    state.set_expiry(id, Some(at).filter(|_| !never), now)?;
                    shown_node(state, id)
                })
                .await
            }
            "rename" => {
                let name = value.to_owned();
                self.run(move |state, now| {
                    state.rename_node(id, &name, now)?;
                    shown_node(state, id)
                })
                .await
            }
            "tags" => {
                let Tags { tags } = self.read()?;
                self.run(move |state, now| {
                    state.tag_node(id, &tags, now)?;
                    shown_node(state, id)
                })
                .await
            }
            "approve_routes" => {
                let Routes { routes } = self.read()?;
                self.run(move |state, now| {
                    state.approve_routes(id, &routes, now)?;
                    shown_node(state, id)
                })
                .await
            }
            _ => Err(Trouble::NoSuchThing),
        }
    }

    async fn run(
        &self,
        command: impl FnMut(&mut State, Time) -> Result<Value, Refusal> + Send + 'static,
    ) -> Answered {
        let outcome = self.server.network.run(command).await;
        Ok(outcome.map_err(Trouble::Failed)??)
    }

    fn read<T: DeserializeOwned>(&self) -> Result<T, Trouble> {
        serde_json::from_slice(self.body).map_err(|why| Trouble::BadRequest(why.to_string()))
    }

    fn parameter(&self, name: &str) -> Option<Cow<'_, str>> {
        let mut pairs = form_urlencoded::parse(self.query.as_bytes());
        pairs.find(|(own, _)| own == name).map(|(_, value)| value)
    }
}

fn shown_node(state: &State, id: NodeId) -> Result<Value, Refusal> {
    let view = state.node(id).ok_or(Refusal::NoNode(id))?;
    Ok(shown::node(state, view))
}

fn number(text: &str) -> Result<i64, Trouble> {
    text.parse().map_err(|_| Trouble::BadRequest(format!("{text:?} is not a number")))
}

fn time(text: &str) -> Result<Time, Trouble> {
    let bad =
        || Trouble::BadRequest(format!("{text:?} is not a time such as 2027-01-31T00:00:00Z"));
    Time::read(text).ok_or_else(bad)
}

/// A part of a path, as it was before it was one.
fn decoded(part: &str) -> String {
    let mut pairs = form_urlencoded::parse(part.as_bytes());
    pairs.next().map(|(name, _)| name.into_owned()).unwrap_or_default()
}
