//! Answers, and why there is none.

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use coordinator::Refusal;
use hyper::StatusCode;
use serde_json::{Value, json};

pub type Answered = Result<Json<Value>, Trouble>;

/// Why something is not answered.
#[derive(Debug)]
pub enum Trouble {
    NoSuchThing,
    BadRequest(String),
    TooLong,
    TooSlow,
    Refused(Refusal),
    Failed(anyhow::Error),
}

impl Trouble {
    /// In HTTP, and in words.
    fn said(&self) -> (StatusCode, String) {
        match self {
            Self::NoSuchThing => (StatusCode::NOT_FOUND, "there is no such command".into()),
            Self::BadRequest(why) => (StatusCode::BAD_REQUEST, why.clone()),
            Self::TooLong => (StatusCode::PAYLOAD_TOO_LARGE, "the request is too long".into()),
            Self::TooSlow => {
                (StatusCode::REQUEST_TIMEOUT, "the request did not come in time".into())
            }
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

impl IntoResponse for Trouble {
    fn into_response(self) -> Response {
        let (status, message) = self.said();
        (status, Json(json!({ "message": message }))).into_response()
    }
}
