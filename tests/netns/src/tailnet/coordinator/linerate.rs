//! linerate-server, configured as headscale is.

use std::path::PathBuf;

use super::FOLDER;
use crate::implementation::built;

/// `LINERATE_SERVER_BIN`, or a build of the workspace.
pub(super) fn program() -> Option<PathBuf> {
    built("LINERATE_SERVER_BIN", "linerate-server").filter(|path| path.is_file())
}

/// Its configuration.
pub(super) fn config(url: &str, [v4, v6]: [&str; 2], [chain, key]: [&str; 2]) -> String {
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
