//! A hostile identity provider. It signs any claims (OpenID Connect Core 1.0).

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use base64ct::{Base64UrlUnpadded, Encoding};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Request, Response, body::Incoming, header::CONTENT_TYPE, server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// An identity provider on loopback.
pub struct Provider {
    at: SocketAddr,
    key: EcdsaKeyPair,
    claims: Mutex<Value>,
    /// The user info; the subject of the claims if absent.
    info: Mutex<Option<Value>>,
    /// Members that replace those of usual answers, by path.
    overrides: Mutex<BTreeMap<String, Value>>,
}

impl Provider {
    /// A provider with a new key.
    ///
    /// # Panics
    /// If the system provides no port or no randomness.
    pub async fn start() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let (random, kind) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let key = EcdsaKeyPair::generate_pkcs8(kind, &random).expect("randomness");
        let key = EcdsaKeyPair::from_pkcs8(kind, key.as_ref(), &random).expect("its own key");
        let at = listener.local_addr().expect("an address");
        let (claims, info, overrides) = (Mutex::default(), Mutex::default(), Mutex::default());
        let provider = Arc::new(Self { at, key, claims, info, overrides });
        let own = Arc::clone(&provider);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let own = Arc::clone(&own);
                let answer = service_fn(move |request: Request<Incoming>| {
                    let answer = own.overridden_answer(request.uri().path()).to_string();
                    let response = Response::builder().header(CONTENT_TYPE, "application/json");
                    async move { response.body(Full::new(Bytes::from(answer))) }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        provider
    }

    /// Its issuer.
    pub fn url(&self) -> String {
        format!("http://{}", self.at)
    }

    /// Sets the claims of all further tokens.
    pub fn set_claims(&self, claims: Value) {
        *self.claims.lock().unwrap_or_else(PoisonError::into_inner) = claims;
    }

    /// Sets the answer with user info.
    pub fn set_user_info(&self, info: Value) {
        *self.info.lock().unwrap_or_else(PoisonError::into_inner) = Some(info);
    }

    /// Sets members of the answers at a path: "/token", or "" for the provider's description.
    /// Members with the value `null` are removed.
    pub fn override_answer(&self, path: &str, members: Value) {
        let mut overrides = self.overrides.lock().unwrap_or_else(PoisonError::into_inner);
        overrides.insert(path.to_owned(), members);
    }

    fn overridden_answer(&self, path: &str) -> Value {
        let mut answer = self.answer(path);
        let overrides = self.overrides.lock().unwrap_or_else(PoisonError::into_inner);
        let path = if path.starts_with("/.well-known/") { "" } else { path };
        let members = overrides.get(path).and_then(Value::as_object);
        for (name, value) in members.into_iter().flatten() {
            answer[name] = value.clone();
        }
        if let Some(members) = answer.as_object_mut() {
            members.retain(|_, value| !value.is_null());
        }
        answer
    }

    fn answer(&self, path: &str) -> Value {
        let (url, encoded) = (self.url(), Base64UrlUnpadded::encode_string);
        let point = self.key.public_key().as_ref();
        match path {
            "/jwks" => json!({ "keys": [{
                "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": "1",
                "x": encoded(&point[1..33]), "y": encoded(&point[33..]),
            }]}),
            "/token" => {
                json!({ "access_token": "a", "token_type": "Bearer", "id_token": self.token() })
            }
            "/userinfo" => {
                let info = self.info.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
                info.unwrap_or_else(|| json!({ "sub": claims["sub"] }))
            }
            _ => json!({
                "issuer": url, "userinfo_endpoint": format!("{url}/userinfo"), "authorization_endpoint": format!("{url}/login"),
                "token_endpoint": format!("{url}/token"), "jwks_uri": format!("{url}/jwks"),
                "response_types_supported": ["code"], "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["ES256"],
            }),
        }
    }

    fn token(&self) -> String {
        let encoded =
            |value: &Value| Base64UrlUnpadded::encode_string(value.to_string().as_bytes());
        let claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        let signed =
            format!("{}.{}", encoded(&json!({"alg": "ES256", "kid": "1"})), encoded(&claims));
        let signature = self.key.sign(&SystemRandom::new(), signed.as_bytes()).expect("randomness");
        format!("{signed}.{}", Base64UrlUnpadded::encode_string(signature.as_ref()))
    }
}
