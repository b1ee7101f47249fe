//! Parsing of policies, and the description of their errors.

use policy::{Policy, Refusal};

/// Parses a policy, with or without its unsupported parts.
///
/// # Errors
/// All errors in the policy.
pub(crate) fn parse(text: &str, ignore_unsupported: bool) -> Result<Policy, Refusal> {
    if ignore_unsupported { Policy::parse_supported(text) } else { Policy::parse(text) }
}

/// The errors of a policy, with a hint if all concern unsupported parts.
pub(crate) fn words(refusal: &Refusal) -> String {
    let is_supported = refusal.faults.iter().any(|fault| !fault.reason.is_unsupported());
    let hint = "\n`--ignore-unsupported` ignores these parts, and the rules that depend on them";
    format!("{refusal}{}", if is_supported { "" } else { hint })
}
