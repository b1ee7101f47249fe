//! headscale with TLS and its own relay and STUN.

use super::FOLDER;

/// Its configuration.
pub(super) fn config(url: &str, [v4, v6]: [&str; 2], [chain, key]: [&str; 2]) -> String {
    format!(
        r#"server_url: {url}
listen_addr: "[::]:443"
metrics_listen_addr: 127.0.0.1:9090
grpc_listen_addr: 127.0.0.1:50443
tls_cert_path: {chain}
tls_key_path: {key}
noise: {{ private_key_path: {FOLDER}/noise.key }}
prefixes: {{ v4: 100.64.0.0/10, v6: "fd7a:115c:a1e0::/48", allocation: sequential }}
derp:
  server:
    enabled: true
    region_id: 999
    region_code: rig
    region_name: Rig
    verify_clients: true
    stun_listen_addr: "[::]:3478"
    private_key_path: {FOLDER}/derp.key
    automatically_add_embedded_derp_region: true
    ipv4: {v4}
    ipv6: "{v6}"
  urls: []
  paths: []
  auto_update_enabled: false
disable_check_updates: true
database: {{ type: sqlite, sqlite: {{ path: {FOLDER}/db.sqlite, write_ahead_log: true }} }}
log: {{ level: info, format: text }}
policy: {{ mode: database }}
dns: {{ magic_dns: true, base_domain: rig.test, override_local_dns: false, nameservers: {{ global: [] }} }}
unix_socket: {FOLDER}/socket
unix_socket_permission: "0700"
logtail: {{ enabled: false }}
taildrop: {{ enabled: false }}
"#
    )
}
