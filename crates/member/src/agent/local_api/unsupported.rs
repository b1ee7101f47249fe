//! The errors of requests that linerate does not support.

use super::ApiError;

/// The error for the request with this name.
pub(super) fn absent(name: &str) -> ApiError {
    let first = name.split('/').next().unwrap_or_default();
    ApiError::unsupported(match first {
        "tka" => "recovery of tailnet lock from a stolen key; use a node that runs tailscaled",
        "serve-config" | "query-feature" => "serve and funnel",
        "cert" | "set-dns" => "certificates",
        "files" | "file-put" | "file-targets" => "sending files (Taildrop)",
        "drive" => "shared folders",
        "appc-route-info" => "app connectors",
        "suggest-exit-node" | "set-use-exit-node-enabled" | "routecheck" => {
            "the choice of an exit node; `tailscale set --exit-node=NODE` sets one"
        }
        "bugreport" | "goroutines" | "pprof" | "logtap" | "debug-log" => {
            "reports to Tailscale; see the log of linerate"
        }
        "component-debug-logging" | "dev-set-state-store" => "debugging of tailscaled",
        _ if first.starts_with("debug-") => "debugging of tailscaled",
        "metrics" | "usermetrics" | "upload-client-metrics" => {
            "metrics of tailscaled; linerate has its own (--metrics)"
        }
        "dns-query" | "dns-osconfig" => "tailscale dns",
        "dial" => "connections through the daemon; use the proxy of linerate",
        "update" => "updates of itself",
        "policy" => "policies of the system",
        "id-token" | "alpha-set-device-attrs" => "identities and attributes",
        "set-expiry-sooner"
        | "reset-auth"
        | "disconnect-control"
        | "reload-config"
        | "shutdown"
        | "set-udp-gro-forwarding" => first,
        _ => {
            return ApiError::absent(format_args!("linerate does not support /localapi/v0/{name}"));
        }
    })
}
