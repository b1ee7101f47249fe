//! linerate-server, set up as headscale is.

use std::env;
use std::path::PathBuf;

use super::FOLDER;
use crate::implementation::Implementation;

/// `LINERATE_SERVER_BIN`, else the one that was built beside `linerate`.
pub fn program() -> Option<PathBuf> {
    let beside = || Some(Implementation::Linerate.program()?.with_file_name("linerate-server"));
    let path = env::var_os("LINERATE_SERVER_BIN").map(PathBuf::from).or_else(beside);
    path.filter(|path| path.is_file())
}

/// Its configuration.
pub fn config(url: &str, [v4, v6]: [&str; 2], [chain, key]: [&str; 2]) -> String {
    format!(
        r#"server_url = "{url}"
listen = ["[::]:443"]
tls_certificate = "{chain}"
tls_key = "{key}"
state_dir = "{FOLDER}"
socket = "{FOLDER}/socket"
base_domain = "rig.test"

[derp]
region_code = "rig"
region_name = "Rig"
ipv4 = "{v4}"
ipv6 = "{v6}"
"#
    )
}
