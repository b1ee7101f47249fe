//! Files for the pages, which are embedded in the program.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::LazyLock,
};

use axum::{
    extract::Path,
    http::header::{CACHE_CONTROL, CONTENT_TYPE},
    response::{IntoResponse, Response},
};

/// Name, type and contents. htmx is version 2.0.11 by Big Sky Software (0BSD), from npm.
const FILES: [(&str, &str, &[u8]); 5] = [
    ("page.css", "text/css; charset=utf-8", include_bytes!("../../../assets/page.css")),
    ("page.js", "text/javascript; charset=utf-8", include_bytes!("../../../assets/page.js")),
    ("login.js", "text/javascript; charset=utf-8", include_bytes!("../../../assets/login.js")),
    (
        "htmx.min.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../../../assets/htmx.min.js"),
    ),
    ("icon.svg", "image/svg+xml", include_bytes!("../../../assets/icon.svg")),
];

/// Hash of the files. Pages include it in URLs, so that browsers can cache the files.
pub(super) fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let mut hasher = DefaultHasher::new();
        FILES.hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    });
    &VERSION
}

pub(super) async fn file(Path(name): Path<String>) -> Response {
    let Some((_, kind, bytes)) = FILES.iter().find(|(own, ..)| *own == name) else {
        return super::not_found();
    };
    let committed = "public, max-age=31536000, immutable";
    ([(CONTENT_TYPE, *kind), (CACHE_CONTROL, committed)], *bytes).into_response()
}
