//! Answers and errors. An error has the form of headscale's API: a gRPC code, its HTTP status, and a
//! message.

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use coordinator::Refusal;
use hyper::StatusCode;
use serde_json::{Value, json};

pub(super) type ApiResult = Result<Json<Value>, ApiError>;

/// Why a request failed.
#[derive(Debug)]
pub(super) enum ApiError {
    NoSuchThing,
    NoSuchMethod,
    BadRequest(String),
    TooLong,
    TooSlow,
    Refused(Refusal),
    Failed(anyhow::Error),
}

/// gRPC codes (`google/rpc/code.proto`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Code {
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
}

impl ApiError {
    /// The HTTP status, the gRPC code, and the message.
    fn parts(&self) -> (StatusCode, Code, String) {
        match self {
            Self::NoSuchThing => (StatusCode::NOT_FOUND, Code::NotFound, "Not Found".into()),
            Self::NoSuchMethod => {
                (StatusCode::NOT_IMPLEMENTED, Code::Unimplemented, "Method Not Allowed".into())
            }
            Self::BadRequest(why) => (StatusCode::BAD_REQUEST, Code::InvalidArgument, why.clone()),
            Self::TooLong => (
                StatusCode::PAYLOAD_TOO_LARGE,
                Code::ResourceExhausted,
                "the request is too long".into(),
            ),
            Self::TooSlow => (
                StatusCode::REQUEST_TIMEOUT,
                Code::DeadlineExceeded,
                "the request took too long to arrive".into(),
            ),
            Self::Refused(why) => {
                let (status, code) = of_refusal(why);
                (status, code, why.to_string())
            }
            Self::Failed(why) => {
                (StatusCode::INTERNAL_SERVER_ERROR, Code::Internal, format!("{why:#}"))
            }
        }
    }
}

fn of_refusal(why: &Refusal) -> (StatusCode, Code) {
    match why {
        Refusal::NoUser(_)
        | Refusal::NoKey(_)
        | Refusal::NoApiKey(_)
        | Refusal::NoNode(_)
        | Refusal::NoRegistration
        | Refusal::NoLogin
        | Refusal::NoPolicy(_) => (StatusCode::NOT_FOUND, Code::NotFound),
        Refusal::NameTaken(_) => (StatusCode::CONFLICT, Code::AlreadyExists),
        Refusal::InvalidName(_)
        | Refusal::InvalidTag(_)
        | Refusal::InvalidRegistrationId
        | Refusal::KeyWithoutOwner
        | Refusal::LastTag
        | Refusal::NotAdvertised(_)
        | Refusal::TagsDenied(_)
        | Refusal::Policy(_) => (StatusCode::BAD_REQUEST, Code::InvalidArgument),
        Refusal::NameFromProvider(_)
        | Refusal::HasNodes(..)
        | Refusal::IsOwner(_)
        | Refusal::InPolicy(..)
        | Refusal::NameInPolicy(_)
        | Refusal::NodeKeyInUse
        | Refusal::NoAddress
        | Refusal::NoPoolAddress => (StatusCode::BAD_REQUEST, Code::FailedPrecondition),
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, code, message) = self.parts();
        refusal(status, code, &message)
    }
}

/// An error as JSON.
pub(super) fn refusal(status: StatusCode, code: Code, message: &str) -> Response {
    let body = json!({ "code": code as u8, "message": message, "details": [] });
    (status, Json(body)).into_response()
}
