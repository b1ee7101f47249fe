//! The chains of `vectors.json`. The tests of the crate `mesh` use this file, too.

use std::{env, fs, path::PathBuf};

use serde::Deserialize;
use tailnet::{
    keys::NodePublic,
    tka::{Authority, VerifyError},
};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Chain {
    pub name: String,
    pub checkpoint: String,
    pub steps: Vec<Step>,
    pub signatures: Option<Vec<Signature>>,
    pub secrets: Vec<Secret>,
    pub renewed: Option<Vec<Renewal>>,
    pub wrapped: Option<Vec<Wrapped>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Renewal {
    pub key: String,
    pub public: String,
    pub first: String,
    pub nodes: Vec<String>,
    pub texts: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Wrapped {
    pub text: String,
    pub auth_key: String,
    pub node: String,
    pub signed: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Step {
    pub updates: Vec<String>,
    pub accepted: bool,
    pub head: String,
    pub keys: Vec<String>,
    pub offer: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Signature {
    pub name: String,
    pub node: String,
    pub text: String,
    pub accepted: bool,
    pub former: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Secret {
    pub secret: String,
    pub accepted: bool,
}

/// Returns the chains of the tree, or others. `go run . -changes 2000` creates more.
pub fn chains() -> Vec<Chain> {
    let own =
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tailnet/tests/tka/vectors.json");
    let path = env::var_os("LINERATE_TKA_VECTORS").map_or_else(own, PathBuf::from);
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

pub fn hex(text: &str) -> Vec<u8> {
    base16ct::lower::decode_vec(text).unwrap()
}

pub fn node(text: &str) -> NodePublic {
    NodePublic(hex(text).try_into().unwrap())
}

pub fn begin(chain: &Chain) -> Authority {
    Authority::bootstrap(&hex(&chain.checkpoint)).unwrap()
}

pub fn inform_step(authority: &mut Authority, step: &Step) -> Result<(), VerifyError> {
    let updates: Vec<Vec<u8>> = step.updates.iter().map(|text| hex(text)).collect();
    authority.inform(&updates)
}

/// Returns the authority after a whole chain.
pub fn followed(chain: &Chain) -> Authority {
    let mut authority = begin(chain);
    for step in &chain.steps {
        let _ = inform_step(&mut authority, step);
    }
    authority
}
