//! The files that pages need, all of them in this program.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::LazyLock,
};

use axum::{
    extract::Path,
    http::header::{CACHE_CONTROL, CONTENT_TYPE},
    response::{IntoResponse, Response},
};

/// Name, type and contents. htmx is 2.0.11, by Big Sky Software (0BSD), as npm has it.
const FILES: [(&str, &str, &[u8]); 5] = [
    ("page.css", "text/css; charset=utf-8", include_bytes!("../../assets/page.css")),
    ("page.js", "text/javascript; charset=utf-8", include_bytes!("../../assets/page.js")),
    ("login.js", "text/javascript; charset=utf-8", include_bytes!("../../assets/login.js")),
    ("htmx.min.js", "text/javascript; charset=utf-8", include_bytes!("../../assets/htmx.min.js")),
    ("icon.svg", "image/svg+xml", include_bytes!("../../assets/icon.svg")),
];

/// A name for these contents: pages ask for files by it, so that browsers may keep them.
pub fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let mut hasher = DefaultHasher::new();
        FILES.hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    });
    &VERSION
}

pub async fn file(Path(name): Path<String>) -> Response {
    let Some((_, kind, bytes)) = FILES.iter().find(|(own, ..)| *own == name) else {
        return super::nothing();
    };
    let kept = "public, max-age=31536000, immutable";
    ([(CONTENT_TYPE, *kind), (CACHE_CONTROL, kept)], *bytes).into_response()
}
