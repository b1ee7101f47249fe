//! Tags of nodes.

use crate::refusal::Refusal;

/// The maximum length of a tag's name, in bytes: that of a DNS label.
const MAX_TAG: usize = 63;

/// Checks tags that a user assigns. Capital letters are refused, as in headscale.
pub(crate) fn check_tags(tags: &[String]) -> Result<(), Refusal> {
    let may_be_given = |tag: &str| is_tag(tag) && !tag.contains(char::is_uppercase);
    match tags.iter().find(|tag| !may_be_given(tag)) {
        Some(tag) => Err(Refusal::InvalidTag(tag.clone())),
        None => Ok(()),
    }
}

/// Whether a text is a tag. Like headscale, this accepts more characters than Tailscale's service, such as `_`.
pub(crate) fn is_tag(tag: &str) -> bool {
    let name = tag.strip_prefix("tag:").unwrap_or_default();
    let is_odd = |letter: char| letter.is_whitespace() || letter.is_control();
    name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.len() <= MAX_TAG
        && !name.contains(is_odd)
}
