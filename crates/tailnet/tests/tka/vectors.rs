//! The chains of `vectors.json`. The tests of the crate `mesh` use this file, too.

use std::{env, fs, path::PathBuf};

use serde::Deserialize;
use tailnet::{
    keys::NodePublic,
    tka::{Authority, VerifyError},
};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Chain {
    pub(crate) name: String,
    pub(crate) checkpoint: String,
    pub(crate) steps: Vec<Step>,
    pub(crate) signatures: Option<Vec<Signature>>,
    pub(crate) secrets: Vec<Secret>,
    pub(crate) renewed: Option<Vec<Renewal>>,
    pub(crate) wrapped: Option<Vec<Wrapped>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Renewal {
    pub(crate) key: String,
    pub(crate) public: String,
    pub(crate) first: String,
    pub(crate) nodes: Vec<String>,
    pub(crate) texts: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Wrapped {
    pub(crate) text: String,
    pub(crate) auth_key: String,
    pub(crate) node: String,
    pub(crate) signed: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Step {
    pub(crate) updates: Vec<String>,
    pub(crate) accepted: bool,
    pub(crate) head: String,
    pub(crate) keys: Vec<String>,
    pub(crate) offer: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Signature {
    pub(crate) name: String,
    pub(crate) node: String,
    pub(crate) text: String,
    pub(crate) accepted: bool,
    pub(crate) former: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Secret {
    pub(crate) secret: String,
    pub(crate) accepted: bool,
}

/// Returns the chains of the tree, or others. `go run . -changes 2000` creates more.
pub(crate) fn chains() -> Vec<Chain> {
    let own =
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tailnet/tests/tka/vectors.json");
    let path = env::var_os("LINERATE_TKA_VECTORS").map_or_else(own, PathBuf::from);
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

pub(crate) fn hex(text: &str) -> Vec<u8> {
    base16ct::lower::decode_vec(text).unwrap()
}

pub(crate) fn node(text: &str) -> NodePublic {
    NodePublic(hex(text).try_into().unwrap())
}

pub(crate) fn begin(chain: &Chain) -> Authority {
    Authority::bootstrap(&hex(&chain.checkpoint)).unwrap()
}

pub(crate) fn inform_step(authority: &mut Authority, step: &Step) -> Result<(), VerifyError> {
    let updates: Vec<Vec<u8>> = step.updates.iter().map(|text| hex(text)).collect();
    authority.inform(&updates)
}

/// Returns the authority after a whole chain.
pub(crate) fn followed(chain: &Chain) -> Authority {
    let mut authority = begin(chain);
    for step in &chain.steps {
        let _ = inform_step(&mut authority, step);
    }
    authority
}
