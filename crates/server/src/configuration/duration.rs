//! Durations in Prometheus's format, which headscale uses: numbers with units, the largest first.

use std::time::Duration;

/// Units with their milliseconds, the largest first.
const UNITS: [(&str, u64); 7] = [
    ("y", 365 * DAY),
    ("w", 7 * DAY),
    ("d", DAY),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
];
const DAY: u64 = 24 * 3_600_000;

/// Parses a duration such as 24h, 7d or 90d12h. 0 needs no unit.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let bad = || {
        format!(
            "{text:?} is not a duration such as 24h, 7d or 90d12h: units are y, w, d, h, m, s and ms, each \
             once and in this order"
        )
    };
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (mut rest, mut units, mut sum) = (text, &UNITS[..], 0_u64);
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, behind) = rest.split_at(digits);
        let letters = behind.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, behind) = behind.split_at(letters);
        let at = units.iter().position(|(name, _)| *name == unit).ok_or_else(bad)?;
        let number: u64 = number.parse().map_err(|_| bad())?;
        let part = number.checked_mul(units[at].1);
        sum = part.and_then(|part| sum.checked_add(part)).ok_or_else(bad)?;
        (rest, units) = (behind, &units[at + 1..]);
    }
    (!text.is_empty()).then(|| Duration::from_millis(sum)).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_as_headscale_parses_them() {
        let hours = |hours: u64| Ok(Duration::from_secs(hours * 3600));
        for (text, expected) in [
            ("0", hours(0)),
            ("24h", hours(24)),
            ("1w", hours(7 * 24)),
            ("90d12h", hours(90 * 24 + 12)),
            ("1y2w3d4h", hours((365 + 14 + 3) * 24 + 4)),
            ("90m", Ok(Duration::from_secs(5400))),
            ("1s500ms", Ok(Duration::from_millis(1500))),
        ] {
            assert_eq!(parse_duration(text), expected, "{text}");
        }
        let wrong = ["", "h", "24", "1é", "-1h", "1.5h", "1h1d", "1h1h", "1 h", "1h ", "1H"];
        for wrong in wrong.into_iter().chain(["99999999999999999999d", "9999999999999999y"]) {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
