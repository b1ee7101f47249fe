//! Converts the bytes of a file to text.

use zeroize::Zeroizing;

use super::{Reason, error::Fault, lines, warnings::Warnings};

/// Converts a file to text. Like bash, skips zero bytes, which a power failure may leave in a file.
/// Invalid UTF-8 is replaced in a comment and refused elsewhere.
pub(super) fn decode(
    bytes: &[u8],
    warnings: &mut Warnings<'_>,
) -> Result<Zeroizing<String>, Fault> {
    if bytes.contains(&0) {
        warnings.add_whole("zero bytes are left out");
    }
    // Allocated once, because it contains keys. The replacement character has three bytes.
    let mut text = Zeroizing::new(String::with_capacity(3 * bytes.len()));
    for (number, line) in (1..).zip(bytes.split_inclusive(|byte| *byte == b'\n')) {
        let mut read = 0;
        for chunk in line.utf8_chunks() {
            text.extend(chunk.valid().chars().filter(|c| *c != '\0'));
            read += chunk.valid().len();
            if chunk.invalid().is_empty() {
                continue;
            }
            if !ends_in_comment(&line[..read]) {
                return Err(Fault { line: number, key: None, reason: Reason::NotText });
            }
            read += chunk.invalid().len();
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    Ok(text)
}

/// Whether the start of a line ends in a comment. The shell interprets a hook: its comment begins
/// at a `#` after a blank, without a quote before it.
fn ends_in_comment(start: &[u8]) -> bool {
    let Some(place) = start.iter().position(|byte| *byte == b'#') else { return false };
    let before = &start[..place];
    let Some(equals) = before.iter().position(|byte| *byte == b'=') else { return true };
    if !lines::is_hook_name(&String::from_utf8_lossy(&before[..equals])) {
        return true;
    }
    let command = &before[equals + 1..];
    command.last().is_none_or(u8::is_ascii_whitespace)
        && !command.iter().any(|byte| b"'\"\\`{".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(bytes: &[u8]) -> Result<(String, Vec<String>), usize> {
        let mut warnings = Warnings::new("wg0.conf");
        let text = decode(bytes, &mut warnings).map_err(|fault| fault.line)?;
        Ok((text.to_string(), warnings.into_all()))
    }

    #[test]
    fn invalid_utf8_is_replaced_only_in_comments() {
        for (bytes, text) in [
            (&b"# M\xfcnchen\n[Interface]"[..], "# M\u{fffd}nchen\n[Interface]"),
            (b"MTU = 1400 # \xff\xfe", "MTU = 1400 # \u{fffd}\u{fffd}"),
            (b"PostUp = true # \xfc\n", "PostUp = true # \u{fffd}\n"),
            (b"# PostUp = '\xfc'\n", "# PostUp = '\u{fffd}'\n"),
            ("# München".as_bytes(), "# München"),
        ] {
            assert_eq!(decoded(bytes), Ok((text.to_owned(), Vec::new())));
        }
        for bytes in [
            &b"\n[Interf\xe4ce]"[..],
            b"\nDNS = m\xfcnchen.example # a",
            b"\nPostUp = echo '# \xfc'",
            b"\n postup = echo a#\xfc",
        ] {
            assert_eq!(decoded(bytes), Err(2), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn zero_bytes_are_skipped_with_a_warning() {
        let warning = "wg0.conf: zero bytes are left out".to_owned();
        let expected = ("[Interface]\nMTU = 1400\n".to_owned(), vec![warning]);
        assert_eq!(decoded(b"[Interface]\nMTU = 14\x0000\n\0\0\0\0"), Ok(expected));
    }
}
