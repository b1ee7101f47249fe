//! Scopes of link-local endpoints.

use sys::netlink::Netlink;
use zeroize::Zeroizing;

/// Replaces interface names in link-local endpoints by indices: wg(8) sends names, but the parser
/// has no access to the interfaces. Returns `None` if `text` contains no scope.
pub fn resolve_scopes(text: &str) -> Option<Zeroizing<String>> {
    if !text.contains('%') {
        return None;
    }
    let mut numbered = Zeroizing::new(String::with_capacity(2 * text.len()));
    for line in text.split_inclusive('\n') {
        match line.starts_with("endpoint=").then(|| resolve_scope(line)).flatten() {
            Some(line) => numbered.push_str(&line),
            None => numbered.push_str(line),
        }
    }
    Some(numbered)
}

fn resolve_scope(line: &str) -> Option<String> {
    let (address, rest) = line.split_once('%')?;
    let (scope, rest) = rest.split_once(']')?;
    let link = Netlink::open().and_then(|netlink| netlink.link_by_name(scope)).ok()??;
    Some(format!("{address}%{}]{rest}", link.index))
}
